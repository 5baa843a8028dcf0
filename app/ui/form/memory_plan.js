// The plan is replaced with each move of a slider; its table stays open as it was left.
let open = false;
element.addEventListener('toggle', (event) => { if (event.target.matches('.lt-plan-stages')) open = event.target.open; }, true);
new MutationObserver(() => {
  const stages = element.querySelector('.lt-plan-stages');
  if (stages && stages.open !== open) stages.open = open;
}).observe(element, { childList: true, subtree: true });
