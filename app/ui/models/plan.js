// The tables of what cards of several sizes would do with a model's weights.
import { make, makeTable } from '../elements.js';

const HEAD = ['Card', 'Cap', 'Preserved', 'Resident', 'Streamed per step', 'In about', 'Main memory', 'Disk per step', 'Peak', 'Weights'];
const LESS = 'less preserved';

/** Return the table of the formats that the transformer's file may have. */
export function formatTable({ cards, rows }) {
  const lines = rows.flatMap((one) => [[one.format, one.file, ...one.default], [LESS, '', ...one.automatic]]);
  return makeTable(['Format', 'File', ...cards], lines, 'lt-model-plan');
}

/** Return the table of the cards. */
export function planTable(cards) {
  const lines = cards.flatMap(({ card, cap, rows }) => (
    rows.length ? rows.map((cells, index) => [...(index ? [LESS, ''] : [card, cap]), ...cells]) : [[card, cap, '']]
  ));
  const table = makeTable(HEAD, lines, 'lt-model-plan');
  for (const { card, least, rows } of cards) {
    const row = [...table.tBodies[0].rows].find((one) => one.cells[0].textContent === card);
    const textContent = `Does not fit; a cap of ${least} GB would be enough.`;
    if (!rows.length) row.lastElementChild.replaceWith(make('td', { colSpan: HEAD.length - 2, className: 'lt-wide', textContent }));
  }
  return table;
}
