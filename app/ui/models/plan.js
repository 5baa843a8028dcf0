// The tables of what cards of several sizes would do with a model's weights.
import { make } from '../elements.js';

const HEAD = ['Card', 'Cap', 'Preserved', 'Resident', 'Streamed per step', 'In about', 'Main memory', 'Disk per step', 'Peak', 'Weights'];
const NOTE = 'Sizes are in GB. The time of the copies is computed for the link that such a card has: PCIe 4.0 with '
  + '16 lanes, or with 8 for a card of 8 GB. The card computes meanwhile. Streamed weights should fit into the free main memory; '
  + 'the disk is only read if they do not. The second line of a card shows the plan with as little preserved memory '
  + 'as the estimates allow. The automatic value is larger, because the memory of these cards becomes fragmented.';

const FORMATS_NOTE = '1.7 + 22.3 means that 1.7 GB of the transformer stay on the device, and each step streams 22.3 GB. That much main '
  + 'memory should be free; otherwise, each step reads as much from the disk. (5.1) means that the video does not '
  + 'fit; a cap of 5.1 GB would be enough. The second line of a format is for as little preserved memory as the estimates allow. Names like '
  + 'Q4_K are types of GGUF files. The setting Weight Type changes only the type on the device, while main memory and disk hold the files as they are.';

function rowsOf({ card, cap, least, rows }) {
  const head = [make('th', { scope: 'row', textContent: card }), make('td', { textContent: cap })];
  if (!rows.length) {
    const words = `Does not fit; a cap of ${least} GB would be enough.`;
    return [make('tr', {}, ...head, make('td', { colSpan: HEAD.length - 2, textContent: words, className: 'lt-wide' }))];
  }
  return rows.map((cells, index) => {
    const first = index ? [make('th', { scope: 'row', textContent: 'less preserved' }), make('td')] : head;
    return make('tr', {}, ...first, ...cells.map((textContent) => make('td', { textContent })));
  });
}

function tableOf(names, rows) {
  const head = make('tr', {}, ...names.map((textContent) => make('th', { scope: 'col', textContent })));
  return make('table', { className: 'lt-model-plan' }, make('thead', {}, head), make('tbody', {}, ...rows));
}

/** Return the table of the formats that the transformer's file may have, with its note. */
export function formatTable({ cards, rows }) {
  const row = (name, size, cells) => make(
    'tr', {}, make('th', { scope: 'row', textContent: name }),
    ...[size, ...cells].map((textContent) => make('td', { textContent })),
  );
  const lines = rows.flatMap((one) => [row(one.format, one.file, one.default), row('less preserved', '', one.automatic)]);
  return make('div', {}, tableOf(['Format', 'File', ...cards], lines), make('p', { textContent: FORMATS_NOTE }));
}

/** Return the table of the cards with its note. */
export function planTable(cards) {
  return make('div', {}, tableOf(HEAD, cards.flatMap(rowsOf)), make('p', { textContent: NOTE }));
}
