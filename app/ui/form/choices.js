// The choices of Order. Gradio gives each of them a group of its own, in which the arrow keys have nowhere to go.

const GROUP = 'lt-mode';
const STRAY = `#set-mode input[type="radio"]:not([name="${GROUP}"])`;

/** Make the choices one group, also when another model brings others. */
export function groupChoices() {
  const group = () => {
    for (const choice of document.querySelectorAll(STRAY)) choice.name = GROUP;
  };
  new MutationObserver(group).observe(document.querySelector('.lt-request'), {
    childList: true, subtree: true, attributeFilter: ['name'],
  });
  group();
}
