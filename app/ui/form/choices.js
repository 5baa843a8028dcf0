// The choices of Order. Gradio puts each of them into a separate group, in which the arrow keys have no effect.

const GROUP = 'lt-mode';
const STRAY = `#set-mode input[type="radio"]:not([name="${GROUP}"])`;

/** Put the choices into one group, including those that come with another model. */
export function groupChoices() {
  const group = () => {
    for (const choice of document.querySelectorAll(STRAY)) choice.name = GROUP;
  };
  new MutationObserver(group).observe(document.querySelector('.lt-request'), {
    childList: true, subtree: true, attributeFilter: ['name'],
  });
  group();
}
