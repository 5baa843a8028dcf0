// The table of what cards of several sizes would do with a model's weights.
import { make } from '../elements.js';

const HEAD = ['Card', 'Cap', 'Preserved', 'Resident', 'Streamed per step', 'Main memory', 'Peak'];
const NOTE = 'All figures are in GB, for the weights as they are stored. Streamed weights are kept in main memory; if they do not '
  + 'fit there, each step reads as much from the disk. The second line of a card shows the automatic preserved memory, '
  + 'which follows from the estimates. The default is larger, because the memory of these cards becomes fragmented.';

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
