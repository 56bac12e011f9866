// Opens the section that a link leads to, and notes on each heat map how many of its paths are drawn.
"use strict";
function reveal() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target) { target.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", reveal);
reveal();
for (const map of document.querySelectorAll("svg.map")) {
  const drawn = [...map.querySelectorAll("path")].filter((p) => p.getBoundingClientRect().width > 0);
  map.dataset.drawn = drawn.length;
}
