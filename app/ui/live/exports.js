// The fold "Download as", which names the formats of a video with their sizes, and makes and saves a file in one of them.
import { make, makeButton, setText } from '../elements.js';
import { linesOf, post } from '../server.js';

/** Set up the fold. The result shows it for a scene. */
export function prepareExports(fold, report) {
  const [list, say] = ['ul', 'p'].map((tag) => fold.querySelector(tag));
  let scene = { video: null };
  let shown = ''; // the address of the video that the list is about
  let running = null; // what calls off the export that is being made

  async function save(button, { format, label }) {
    const { job } = scene;
    const own = running = new AbortController();
    const stop = makeButton('Cancel', () => own.abort(), { className: 'lt-tile' });
    button.after(stop);
    button.focus();
    try {
      for await (const { share, refusal, url, name, size } of linesOf(own.signal, 'exports_make', { job, format })) {
        if (refusal) throw new Error(refusal);
        if (url) {
          make('a', { href: url, download: name }).click();
          setText(say, `${label}: ${size}`);
        } else setText(say, `${label}: ${Math.floor(100 * share)} %`);
      }
    } catch (error) {
      setText(say, own.signal.aborted ? `${label} was cancelled.` : error.message);
    } finally {
      stop.remove();
      if (running === own) running = null;
    }
  }

  async function read() {
    if (!fold.open || !scene.video || shown === scene.video.url) return;
    shown = scene.video.url;
    setText(say, 'Looking for formats…');
    const offers = await post('exports_list', { job: scene.job }).catch((error) => {
      shown = '';
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
    if (now.job !== scene.job) {
      running?.abort();
      fold.open = false;
    }
    scene = now;
    fold.hidden = !now.video || now.video.isPicture;
    read();
  };
}
