// The boxes of markup: the examples to click, the demo model, and the memory plan.
import { keep, recall } from '../storage.js';
import { offerPreserved } from './preserved.js';

/** Start the example that is clicked. */
export function offerExamples({ element, trigger }) {
  element.addEventListener('click', (event) => {
    const card = event.target.closest('[data-example]');
    if (card) trigger('click', { index: Number(card.dataset.example) });
  });
}

/** Keep the box about the demo model closed, once a user has closed it. */
export function keepDemoClosed({ element }) {
  const show = () => element.classList.toggle('lt-closed', recall('demo-box') === 'closed');
  element.addEventListener('click', (event) => {
    if (!event.target.closest('.lt-demo-close')) return;
    keep('demo-box', 'closed');
    show();
  });
  show();
}

/** Forget what the form carries along when the button for that is pressed. */
export function offerForgetting({ element, trigger }) {
  element.addEventListener('click', (event) => {
    if (!event.target.closest('.lt-forget')) return;
    trigger('click');
    document.querySelector('#set-prompt textarea').focus(); // the button is about to disappear
  });
}

/** Keep the plan's table open or closed as the user left it, since each move of a slider replaces the plan. */
export function keepPlanOpen({ element }) {
  offerPreserved(element);
  let isOpen = false;
  element.addEventListener('toggle', (event) => {
    if (event.target.matches('.lt-plan-stages')) isOpen = event.target.open;
  }, true);
  new MutationObserver(() => {
    const stages = element.querySelector('.lt-plan-stages');
    if (stages && stages.open !== isOpen) stages.open = isOpen;
  }).observe(element, { childList: true, subtree: true });
}
