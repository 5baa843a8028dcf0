// The fold "Download as", which names the formats of a video with their sizes, and makes and saves a file in one of them.
import { hasChanged, make, makeButton, setText } from '../elements.js';
import { linesOf, post } from '../server.js';

/** Set up the fold. The result shows it for a scene. */
export function prepareExports(fold, report) {
  const [list, say] = ['ul', 'p'].map((tag) => fold.querySelector(tag));
  let scene = {};
  let running = null; // what calls off the export that is being made

  async function save(button, { format, label }) {
    const own = running = new AbortController();
    const stop = make('li', {}, makeButton('Cancel', () => own.abort(), { className: 'lt-tile' }));
    const tell = (words) => setText(say, `${label}: ${words}`);
    button.parentElement.after(stop);
    button.focus();
    try {
      for await (const { share, refusal, url, name, size } of linesOf(own.signal, 'exports_make', { job: scene.job, format })) {
        if (refusal) throw new Error(refusal);
        tell(size ?? `${Math.floor(100 * share)} %`);
        if (url) make('a', { href: url, download: name }).click();
      }
    } catch (error) {
      setText(say, own.signal.aborted ? `${label} was cancelled.` : error.message);
    }
    stop.remove();
  }

  async function read() {
    if (!fold.open || !hasChanged(list, scene.video.url)) return;
    setText(say, 'Looking for formats…');
    const offers = await post('exports_list', { job: scene.job }).catch((error) => {
      hasChanged(list, null); // so that they are asked for again
      report(error.message);
      return [];
    });
    setText(say, '');
    list.replaceChildren(...offers.map((offer) => {
      const properties = { className: 'lt-tile' };
      const press = offer.format === 'png' // its frames are sent at once, and the browser tells how far it is
        ? make('a', { href: `api/exports/frames?job=${encodeURIComponent(scene.job)}`, download: '', ...properties })
        : makeButton('', () => save(press, offer), properties, report);
      press.append(offer.label, make('small', { textContent: offer.size }));
      return make('li', {}, press);
    }));
  }

  fold.addEventListener('toggle', read);
  return (now) => {
    fold.hidden = !now.video || now.video.isPicture;
    if (now.job !== scene.job || fold.hidden) {
      running?.abort();
      fold.open = false;
    }
    scene = now;
    read();
  };
}
