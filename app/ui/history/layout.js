// The elements of an opened video.
import { make } from '../elements.js';

const button = (textContent, className = '') => make('button', { type: 'button', textContent, className });

/** Resolve once the parts of the live view are in the page, since a link may open a video before that. */
export async function partsAreThere() {
  while (!document.querySelector('.lt-live .lt-spent')) await new Promise(requestAnimationFrame);
}

/** Return a copy of a part of the live view, whose script is to fill it. */
function copyOf(selector) {
  const copy = document.querySelector(`.lt-live ${selector}`).cloneNode(true);
  for (const part of copy.querySelectorAll('.lt-latent, .lt-latent-show, .lt-empty')) part.remove();
  copy.hidden = false;
  return copy;
}

function fold(summary, className, ...content) {
  return make('details', { className }, make('summary', { textContent: summary }), ...content);
}

function cards(title) {
  return make('div', { className: 'lt-kin', hidden: true }, make('h3', { textContent: title }), make('ul', { className: 'lt-videos lt-small' }));
}

/** Fill the root with the elements of a view, and return those that change. */
export function layOut(root) {
  const parts = {
    back: make('a', { href: '#history', className: 'lt-back', textContent: '← All videos' }),
    say: make('p', { className: 'lt-past-say', role: 'status', hidden: true }),
    stage: copyOf('.lt-stage'), strip: copyOf('.lt-strip'), spent: copyOf('.lt-spent'),
    title: make('h2', { className: 'lt-opened-title' }), facts: make('p', { className: 'lt-hint' }),
    remark: make('p', { className: 'lt-hint' }), star: button('☆', 'lt-star'),
    failure: make('div', { className: 'lt-failure', hidden: true }), failureText: make('p', { role: 'alert' }),
    report: make('pre', { className: 'lt-report', tabIndex: 0 }),
    use: button('Use these settings', 'lt-main-button'), again: button('Same again with another seed'),
    resume: button('Resume'), download: make('a', { className: 'lt-button', textContent: 'Download' }),
    copy: button('Copy the link'), remove: button('Remove'),
    address: make('code', {}),
    branch: fold('Continue from here', 'lt-branch'), longer: fold('Make it longer', 'lt-branch'),
    settings: make('dl', {}), states: make('ol', { className: 'lt-states' }),
    files: make('ul', { className: 'lt-files' }), family: make('div', { className: 'lt-family', hidden: true }),
    parent: cards('Branched from'), children: cards('Branches of this video'),
    log: fold('Log', 'lt-log', make('pre', { tabIndex: 0, ariaLabel: 'Log of this video' })),
  };
  parts.strip.replaceChildren();
  const technical = fold('Technical details', '', parts.report);
  parts.failure.append(parts.failureText, technical);
  parts.family.append(parts.parent, parts.children);
  const settings = fold('Settings', 'lt-settings', parts.settings);
  settings.open = true;
  const files = fold('Files', '', parts.files, make('p', { className: 'lt-hint' }, 'Address: ', parts.address));
  const lead = make('div', { className: 'lt-opened-lead' }, parts.stage, parts.strip, parts.failure);
  const head = make('div', { className: 'lt-opened-head' }, parts.title, parts.star);
  const actions = make('div', { className: 'lt-opened-actions' }, parts.use, parts.again, parts.resume, parts.download, parts.copy, parts.remove);
  const side = make(
    'section', { className: 'lt-status lt-opened-side', ariaLabel: 'This video' },
    head, parts.facts, parts.remark, actions, parts.branch, parts.longer, settings,
  );
  const past = fold('What happened', '', parts.states);
  const rest = make(
    'div', { className: 'lt-opened-rest' }, parts.family,
    make('section', { className: 'lt-status', ariaLabel: 'Records' }, past, parts.log, files, parts.spent),
  );
  parts.body = make('div', { className: 'lt-opened' }, lead, side, rest);
  parts.view = make('div', { className: 'lt-view' }, make('div', { className: 'lt-opened-top' }, parts.back, parts.say), parts.body);
  root.replaceChildren(parts.view);
  return parts;
}
