// The figures of a job: facts, durations by kind of work, and the memory on the device over its time.
import { fillList, hasChanged, make, makeRow } from '../elements.js';

const SVG = 'http://www.w3.org/2000/svg';
const [WIDE, HIGH] = [1000, 100]; // the view box of the plot
const THINNEST = 1.5;

function draw(kind, facts, role) {
  const shape = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(facts)) shape.setAttribute(name, value);
  shape.setAttribute('class', role);
  return shape;
}

/** Return the shapes of one use of a network: a block for the measured memory, a line for the planned one. */
function drawUse([stage, begin, length, measured, predicted]) {
  const x = WIDE * begin;
  const width = Math.max(THINNEST, WIDE * length);
  const line = HIGH * (1 - predicted);
  const block = draw('rect', { x, y: HIGH * (1 - measured), width, height: HIGH * measured }, 'lt-use');
  block.dataset.stage = stage;
  return [block, draw('line', { x1: x, x2: x + width, y1: line, y2: line }, 'lt-planned')];
}

function plot(find, memory) {
  const cap = memory.cap === null ? 0 : 1 - memory.cap; // the distance from the top
  const line = draw('line', { x1: 0, x2: WIDE, y1: HIGH * cap, y2: HIGH * cap }, 'lt-cap');
  find('svg').setAttribute('aria-label', memory.said);
  find('svg').replaceChildren(...memory.bars.flatMap(drawUse), ...(memory.cap === null ? [] : [line]));
  find('.lt-cap-text').textContent = memory.capText;
  find('.lt-cap-text').style.top = `${100 * cap}%`;
  find('.lt-length').textContent = memory.length;
  find('.lt-memory-note').textContent = memory.note;
}

function memoryRow({ stage, name, cells }) {
  const mark = make('i');
  mark.dataset.stage = stage;
  return makeRow([[mark, name], ...cells]);
}

function stageRow({ name, text, share }) {
  const line = make('i');
  line.style.width = `${100 * share}%`;
  return makeRow([name, line, text]);
}

function showMemory(box, memory) {
  box.hidden = !memory;
  if (!memory || !hasChanged(box, memory)) return;
  plot((selector) => box.querySelector(selector), memory);
  box.querySelector('tbody').replaceChildren(...memory.rows.map(memoryRow));
}

function showStages(box, stages) {
  box.hidden = !stages.length;
  if (!box.hidden && hasChanged(box, stages)) box.querySelector('tbody').replaceChildren(...stages.map(stageRow));
}

/** Show the figures of a scene in its view. */
export function showFigures(view, { figures, memory }) {
  const { facts = [], stages = [] } = figures || {};
  const list = view.querySelector('.lt-facts');
  list.hidden = !facts.length;
  fillList(list, facts);
  view.querySelector('.lt-spent').hidden = !stages.length && !memory;
  showStages(view.querySelector('.lt-figures'), stages);
  showMemory(view.querySelector('.lt-memory'), memory);
}
