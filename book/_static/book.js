// A page opened from a file may not fetch other pages: show results without excerpts there.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Paper is white: print by day, whatever the screen shows.
addEventListener("beforeprint", () => {
  const theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  addEventListener("afterprint", () => (document.documentElement.dataset.theme = theme), {
    once: true,
  });
});
