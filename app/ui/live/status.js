// The words about the video on the stage: its state and progress, the download, the failure, and its records.
import { fillList, hasChanged, make, offerCopy, setText } from '../elements.js';
import { showFigures } from './figures.js';

function showFacts(card, scene) {
  const facts = {
    state: scene.state,
    job: scene.job,
    section: scene.section,
    sections: scene.sections,
    step: scene.step,
    percent: Math.floor(scene.percent || 0),
    frames: scene.video?.frames ?? 0,
  };
  for (const [name, value] of Object.entries(facts)) card.dataset[name] = value ?? '';
}

function showProgress(find, scene) {
  const whole = Math.floor(scene.percent);
  const meter = find('.lt-meter');
  meter.firstElementChild.style.transform = `scaleX(${scene.percent / 100})`;
  meter.setAttribute('aria-valuenow', whole);
  find('.lt-section-meter').setAttribute('aria-valuenow', Math.floor(scene.sectionPercent));
  setText(find('.lt-percent'), `${whole} %`);
}

// While a video is made, space is reserved for the link before there is something to download, so nothing moves.
function showDownload(link, { video, isOpen }) {
  link.hidden = !video && !isOpen;
  link.classList.toggle('lt-reserved', !video);
  if (!video) return;
  link.href = video.file;
  link.download = video.name;
  setText(link, video.download);
}

function showWarnings(list, warnings) {
  list.hidden = !warnings.length;
  if (hasChanged(list, warnings)) list.replaceChildren(...warnings.map((text) => make('li', { textContent: text })));
}

function showFailure(find, failure) {
  find('.lt-failure').hidden = !failure;
  setText(find('.lt-failure-message'), failure?.message ?? '');
  setText(find('.lt-failure-remedy'), failure?.remedy ?? '');
  setText(find('.lt-report'), failure?.report ?? '');
}

/** Let the button copy the report of a failure. */
export function prepareCopy(box) {
  offerCopy(box.querySelector('.lt-copy'), box.querySelector('.lt-report'));
}

/** Show what a scene says of its video, and its records. */
export function showStatus(view, scene) {
  const find = (selector) => view.querySelector(selector);
  showFacts(find('.lt-status'), scene);
  find('.lt-records').hidden = !scene.job;
  if (!scene.job) return;
  setText(find('.lt-headline'), scene.headline);
  setText(find('.lt-remark'), scene.remark);
  if (!scene.isRunning) setText(find('.lt-eta'), scene.took);
  setText(find('.lt-job'), `Job ${scene.job}`);
  setText(find('.lt-prompt'), scene.prompt || 'No prompt');
  showProgress(find, scene);
  showDownload(find('.lt-download'), scene);
  showWarnings(find('.lt-warnings'), scene.warnings);
  showFailure(find, scene.failure);
  showFigures(view, scene);
  fillList(find('.lt-settings dl'), scene.settings);
}
