// The elements of an opened video: a film, the actions that only the history has, and further records.
import { make } from '../elements.js';
import { emptyView } from '../live/film.js';

const button = (textContent, className = '') => make('button', { type: 'button', textContent, className: `lt-tile ${className}` });
const fold = (summary, ...content) => make('details', {}, make('summary', { textContent: summary }), ...content);

function cards(title) {
  return make('div', { className: 'lt-kin', hidden: true }, make('h3', { textContent: title }), make('ul', { className: 'lt-videos lt-small' }));
}

/** Fill the root with the elements of a view, and return those that change. */
export async function layOut(root) {
  const view = await emptyView();
  const find = (selector) => view.querySelector(selector);
  for (const part of view.querySelectorAll('.lt-empty, .lt-latent, .lt-latent-show, .lt-next, .lt-notify, .lt-pulse, .lt-say')) part.remove();
  find('.lt-status').ariaLabel = 'This video';
  const parts = {
    view, body: make('div', { className: 'lt-opened' }), say: make('p', { className: 'lt-past-say', role: 'status' }),
    back: make('a', { href: '#history', className: 'lt-back', textContent: '← All videos' }),
    made: make('p', { className: 'lt-hint' }), download: find('.lt-download'), resume: find('.lt-resume'),
    use: button('Use these settings'), copy: button('Copy the link'), remove: button('Remove', 'lt-remove'), address: make('code', {}),
    states: make('ol', { className: 'lt-states' }), files: make('ul', { className: 'lt-files' }),
    family: make('div', { className: 'lt-family', hidden: true }),
    parent: cards('Branched from'), children: cards('Branches of this video'),
  };
  find('.lt-prompt').after(parts.made);
  find('.lt-after-say').before(parts.use, parts.copy, parts.remove);
  find('.lt-log').before(fold('What happened', parts.states));
  find('.lt-log').after(fold('Files', parts.files, make('p', { className: 'lt-hint' }, 'Address: ', parts.address)));
  parts.family.append(parts.parent, parts.children);
  parts.body.append(find('.lt-film'), parts.family, find('.lt-records'));
  view.replaceChildren(make('div', { className: 'lt-opened-top' }, parts.back, parts.say), parts.body);
  root.replaceChildren(view);
  return parts;
}
