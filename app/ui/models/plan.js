// The table of what cards of several sizes would do with a model's weights.
import { make } from '../elements.js';

const HEAD = ['Card', 'Cap', 'Preserved', 'Stays', 'Streamed a step', 'Main memory', 'Peak'];
const NOTE = 'In GB, with the weights as they are stored. Streamed weights lie in main memory; where it has no room for them, '
  + 'each step reads as much from the disk. The second line of a card has the automatic preserved memory, which the '
  + 'estimates ask for. The default is larger, as AMD’s cards are prone to fragmentation.';

function rowsOf({ card, cap, least, rows }) {
  const head = [make('th', { scope: 'row', textContent: card }), make('td', { textContent: cap })];
  if (!rows.length) {
    const words = `Does not fit; a cap of ${least} GB would be enough.`;
    return [make('tr', {}, ...head, make('td', { colSpan: HEAD.length - 2, textContent: words, className: 'lt-wide' }))];
  }
  return rows.map((cells, index) => {
    const first = index ? [make('th', { scope: 'row', textContent: 'automatic' }), make('td')] : head;
    return make('tr', {}, ...first, ...cells.map((textContent) => make('td', { textContent })));
  });
}

/** Return the table with its note. */
export function planTable(cards) {
  const head = make('tr', {}, ...HEAD.map((textContent) => make('th', { scope: 'col', textContent })));
  const table = make('table', { className: 'lt-model-plan' }, make('thead', {}, head), make('tbody', {}, ...cards.flatMap(rowsOf)));
  return make('div', {}, table, make('p', { textContent: NOTE }));
}
