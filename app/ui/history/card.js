// A card of the history: a still that plays its video while a user points at it, and facts about the video.
import { dropVideo, fromTemplate, make, onPress, reducedMotion, render, setText } from '../elements.js';
import { post } from '../server.js';
import { clock, dayOf } from '../text.js';

const PAUSE = 120; // milliseconds, so that a pointer on its way to another card loads nothing
const video = make('video', { muted: true, loop: true, playsInline: true, ariaHidden: 'true' }); // on the card that plays
let soon = 0;

video.addEventListener('playing', () => { video.closest('.lt-video-card').dataset.playing = 'true'; });

function stop() {
  clearTimeout(soon);
  delete video.closest('.lt-video-card')?.dataset.playing;
  video.remove();
  dropVideo(video);
}

function preparePlay(element, find) {
  const [link, still] = ['a', 'img'].map((part) => element.querySelector(part));

  function playSoon() {
    if (reducedMotion.matches || link.contains(video)) return;
    stop();
    soon = setTimeout(() => {
      if (!find()) return;
      still.after(video);
      video.src = find();
      video.play().catch(() => {});
    }, PAUSE);
  }

  link.addEventListener('pointerenter', (event) => { if (event.pointerType === 'mouse') playSoon(); });
  link.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') stop(); });
  link.addEventListener('focus', () => { if (link.matches(':focus-visible')) playSoon(); });
  for (const event of ['blur', 'click']) link.addEventListener(event, stop);
}

export function makeCard(onError) {
  const element = fromTemplate('video-card');
  const [link, star, pick] = ['a', '.lt-star', '.lt-pick input'].map((part) => element.querySelector(part));
  const card = {
    element,
    data: {},
    focus: () => link.focus(),
    get isPicked() { return pick.checked; },
    set isPicked(isPicked) { pick.checked = isPicked; },
    /** Show a video, below the heading of a day, alone or in front of its versions, which are `isOpen` or not. */
    show(data, day, isOpen = false) {
      card.data = data;
      const { words, created, seed, model } = data;
      const time = dayOf(created) === day ? clock(created) : `${dayOf(created)}, ${clock(created)}`;
      const facts = `${time} · seed ${seed} · ${model}`;
      const pickName = `Select: ${words.slice(0, 60) || 'no prompt'}`;
      render(element, { ...data, words: words || 'No prompt', facts, count: `${data.versions} versions`, href: `#history/${data.job}`, pickName, isOpen: String(isOpen) });
      showStar(star, data.favourite, words);
    },
  };
  onPress(star, async () => {
    const { favourite } = await setFavourite(card.data);
    card.data.favourite = favourite;
    showStar(star, favourite, card.data.words);
  }, onError);
  preparePlay(element, () => card.data.video);
  return card;
}

export async function setFavourite(data) {
  const [{ favourite }] = await post('jobs_favourite', { jobs: [data.job], favourite: !data.favourite });
  return { ...data, favourite };
}

/** Show on a button if a video is a favourite. One with room for a star has words of its own. */
export function showStar(button, favourite, words) {
  button.setAttribute('aria-pressed', String(favourite));
  const place = button.querySelector('span');
  if (!place) button.setAttribute('aria-label', `Favourite: ${words.slice(0, 60) || 'no prompt'}`);
  setText(place ?? button, favourite ? '★' : '☆');
}
