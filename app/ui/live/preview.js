// The rough preview of the section that is being made. The user may enlarge it or hide it for good.
import { drawn, hasChanged, reducedMotion, setText } from '../elements.js';
import { keep, recall } from '../storage.js';

function draw(picture, data) {
  if (!reducedMotion.matches) {
    picture.src = data;
    return;
  }
  const moving = new Image();
  moving.addEventListener('load', () => { picture.src = drawn(moving, moving.naturalWidth, moving.naturalHeight).toDataURL(); });
  moving.src = data;
}

export function preparePreview(stage) {
  const [box, back, size, hide] = ['', '-show', '-size', '-hide'].map((part) => stage.querySelector(`.lt-latent${part}`));
  let now = null;
  let shown = ''; // the section that is shown
  let next = null; // the preview that follows once this one has moved to its end
  let turn = 0;

  function play(preview) {
    next = preview;
    if (turn && preview.label === shown) return;
    clearTimeout(turn);
    [shown, next] = [preview.label, null];
    draw(box.querySelector('img'), preview.data);
    turn = setTimeout(() => {
      turn = 0;
      if (next) play(next);
    }, 1000 * preview.seconds);
  }

  function show(preview) {
    now = preview;
    const [isAway, isLarge] = [recall('preview') === 'hidden', recall('preview-size') === 'large'];
    box.hidden = !preview || isAway;
    back.hidden = !preview || !isAway;
    box.classList.toggle('lt-large', isLarge);
    size.setAttribute('aria-pressed', String(isLarge));
    size.textContent = isLarge ? 'Make small' : 'Enlarge';
    if (!preview) return;
    if (hasChanged(box, preview.data)) play(preview);
    setText(box.querySelector('.lt-latent-label').lastElementChild, preview.label);
  }

  const onClick = (button, name, choose, focused) => button.addEventListener('click', () => {
    keep(name, choose());
    show(now);
    focused.focus();
  });
  onClick(hide, 'preview', () => 'hidden', back);
  onClick(back, 'preview', () => 'shown', size);
  onClick(size, 'preview-size', () => (box.classList.contains('lt-large') ? 'small' : 'large'), size);
  return show;
}
