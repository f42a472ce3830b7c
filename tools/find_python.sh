#!/bin/sh
# Print the path of the newest supported Python that runs and can make an environment.
#
#     sh tools/find_python.sh [VERSION …]     VERSIONs in order of preference: 3.13 3.12 3.11
#
# PYTHON=… names one instead; it is checked all the same. A command on the PATH can exist and
# not work (a pyenv shim of a version that is not active), and Debian's python3 can lack venv:
# so each candidate has to show what it can do. With VENV=folder, the Python of an environment
# that stands there comes first: it stays with the Python it has.

[ $# -gt 0 ] || set -- 3.13 3.12 3.11
versions="$*"

# Prints the interpreter's own path if it is of version $2 (or any of $versions) and has venv.
# A program that is no Python can end well and print nothing.
try() {
    path=$("$1" -c '
import sys
wanted = sys.argv[1].split()
if "%d.%d" % sys.version_info[:2] not in wanted:
    sys.exit("Python %d.%d" % sys.version_info[:2])
import ensurepip, venv
print(sys.executable)' "$2" 2>/dev/null </dev/null) && [ -x "$path" ] && echo "$path"
}

if [ -n "${PYTHON:-}" ]; then
    try "$PYTHON" "$versions" && exit
    found=$("$PYTHON" -c 'import sys; print("is Python %d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) ||
        found="does not run"
    case $found in "is Python "* | "does not run") ;; *) found="is no Python" ;; esac
    case " $versions " in *" ${found#is Python } "*) found="has no venv module" ;; esac
    echo "PYTHON=$PYTHON $found; name a Python of $(echo "$versions" | sed 's/ / or /g') with venv." >&2
    exit 1
fi

if [ -n "${VENV:-}" ] && [ -x "$VENV/bin/python" ]; then
    try "$VENV/bin/python" "$versions" && exit
fi

for version in $versions; do
    for candidate in \
        "python$version" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python \
        /usr/local/bin/"python$version" \
        /opt/homebrew/bin/"python$version" \
        /usr/bin/"python$version" \
        python3; do
        command -v "$candidate" >/dev/null && try "$candidate" "$version" && exit
    done
done
echo "No Python $(echo "$versions" | sed 's/ / or /g') with venv was found: install one" \
    "(Debian: python3-venv), or name one with PYTHON=/path/to/python." >&2
exit 1
