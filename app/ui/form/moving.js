// Sliders over a picture, which are moved by keys and by dragging them.

const KEYS = { ArrowLeft: -0.02, ArrowUp: -0.02, ArrowRight: 0.02, ArrowDown: 0.02, PageUp: -0.2, PageDown: 0.2, Home: -1, End: 1 };
const within = (position) => Math.round(100 * Math.min(1, Math.max(0, position))) / 100;

/**
 * Let a slider be moved. `at` returns its position, from 0 to 1, and `way` the change of it that a way in pixels stands
 * for, or null while it cannot be moved. `move` is called with each new position, and `done` after the last one.
 */
export function makeMovable(slider, { at, way, move, done }) {
  slider.addEventListener('keydown', (event) => {
    if (!(event.key in KEYS) || way(0, 0) === null) return;
    event.preventDefault();
    move(within(at() + KEYS[event.key]));
    done();
  });
  slider.addEventListener('pointerdown', (down) => {
    if (down.button || way(0, 0) === null) return;
    down.preventDefault();
    slider.focus({ preventScroll: true });
    slider.setPointerCapture(down.pointerId);
    const start = at();
    const listening = new AbortController();
    const { signal } = listening;
    slider.addEventListener('pointermove', (event) => {
      move(within(start + way(event.clientX - down.clientX, event.clientY - down.clientY)));
    }, { signal });
    slider.addEventListener('lostpointercapture', () => {
      listening.abort();
      if (at() !== start) done();
    }, { signal });
  });
}
