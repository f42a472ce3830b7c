#!/bin/sh
# Print the path of a Chromium; install Debian's when there is none and we are root.
set -u
if [ -n "${CHROMIUM:-}" ]; then
    command -v "$CHROMIUM" && exit 0
    echo "CHROMIUM=$CHROMIUM is no program." >&2
    exit 1
fi
find() {
    for name in chromium chromium-browser google-chrome-stable google-chrome; do
        command -v "$name" && exit 0
    done
}
find
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    log=$(mktemp)
    { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$log" 2>&1
    find
    tail -3 "$log" >&2
fi
echo "No Chromium: install the package chromium, or set CHROMIUM to the path of a browser." >&2
exit 1
