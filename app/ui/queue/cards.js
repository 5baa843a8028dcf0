// The lines above the queue, one for each card if there are several: what it makes, its memory, and its buttons.
import { actionButton, actOnce, hasChanged, make } from '../elements.js';

/** Let `list` show the cards. `act` is called with the action of a pressed button and the card's line. */
export function listenToCards(list, act) {
  list.addEventListener('click', ({ target }) => {
    const button = target.closest('[data-action]');
    if (button) actOnce(button, () => act(button.dataset.action, button.closest('li').dataset.card, button.dataset.job));
  });
}

function line({ card, name, memory, job, now, isOut, buttons }) {
  const about = job ? actionButton('watch', now, { className: 'lt-device-now', title: now, ariaLabel: `${now}. Watch it.` })
    : make('span', { className: 'lt-device-now', textContent: now, title: now });
  about.dataset.job = job;
  const row = make(
    'li', {}, make('b', { textContent: name }), about, make('span', { className: 'lt-device-memory', textContent: memory }),
    make('span', { className: 'lt-device-actions' }, ...buttons.map(([action, label]) => actionButton(action, label, { ariaLabel: `${label}: ${name}` }))),
  );
  row.dataset.card = card;
  row.dataset.out = isOut;
  return row;
}

/** Show the cards; none if there is only one. */
export function showCards(list, cards) {
  list.hidden = !cards.length;
  if (!hasChanged(list, cards)) return;
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const [at, action] = [focused?.closest('li').dataset.card, focused?.dataset.action];
  list.replaceChildren(...cards.map(line));
  const row = [...list.children].find(({ dataset }) => dataset.card === at);
  (row?.querySelector(`[data-action="${action}"]`) ?? row?.querySelector('.lt-device-actions button'))?.focus();
}
