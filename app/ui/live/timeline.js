// Memory on the device over a job: each use of a network as a block, what was planned as a line over it, the cap across.
function createTimeline(box) {
  const SVG = 'http://www.w3.org/2000/svg', WIDE = 1000, HIGH = 100;
  const part = (selector) => box.querySelector(selector);
  let said = '';

  function draw(kind, facts, role) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    made.setAttribute('class', role);
    return made;
  }

  function plot(memory) {
    const shapes = [];
    for (const [stage, begin, length, measured, predicted] of memory.bars) {
      const x = WIDE * begin, width = Math.max(1.5, WIDE * length), y = HIGH * (1 - measured), line = HIGH * (1 - predicted);
      const block = draw('rect', { x, y, width, height: HIGH * measured }, 'lt-use');
      block.dataset.stage = stage;
      shapes.push(block, draw('line', { x1: x, x2: x + width, y1: line, y2: line }, 'lt-planned'));
    }
    if (memory.cap !== null) {
      const y = HIGH * (1 - memory.cap);
      shapes.push(draw('line', { x1: 0, x2: WIDE, y1: y, y2: y }, 'lt-cap'));
    }
    const picture = part('svg');
    picture.setAttribute('aria-label', memory.said);
    picture.replaceChildren(...shapes);
    part('.lt-cap-text').textContent = memory.capText;
    part('.lt-cap-text').style.top = memory.cap === null ? '0%' : `${100 * (1 - memory.cap)}%`;
    part('.lt-length').textContent = memory.length;
    part('.lt-memory-note').textContent = memory.note;
  }

  function table(rows) {
    part('tbody').replaceChildren(...rows.map(({ stage, name, cells }) => {
      const row = document.createElement('tr'), head = document.createElement('th'), mark = document.createElement('i');
      head.scope = 'row';
      mark.dataset.stage = stage;
      head.append(mark, name);
      row.append(head, ...cells.map((words) => {
        const cell = document.createElement('td');
        cell.textContent = words;
        return cell;
      }));
      return row;
    }));
  }

  return {
    show(memory) {
      box.hidden = !memory;
      const words = JSON.stringify(memory || null);
      if (!memory || words === said) return;
      said = words;
      plot(memory);
      table(memory.rows);
    },
  };
}
