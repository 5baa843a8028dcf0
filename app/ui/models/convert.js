// The question before a conversion: the type of the copy, what it needs, and what stands against it.
import { call } from '../calls/call.js';
import { actionButton, make, setText } from '../elements.js';

const NOT_FOR_COPIES = ['auto', 'default'];

/**
 * Return the question about the conversion of a model: its content, the control to begin with, and the chosen type.
 * The button with the action `start` can be pressed once the server has answered that there is room.
 */
export function convertQuestion({ model, title }, types) {
  const options = types.filter(([value]) => !NOT_FOR_COPIES.includes(value))
    .map(([value, textContent]) => make('option', { value, textContent: `${value} (${textContent})` }));
  const kinds = make('select', {}, ...options);
  kinds.value = 'int8';
  kinds.setAttribute('aria-label', `Type of the copy: ${title}`);
  const words = make('p', { textContent: 'Looking at the files…' });
  words.setAttribute('role', 'status');
  const start = actionButton('start', 'Convert', { ariaDisabled: 'true' });
  const keep = actionButton('keep', 'Close');
  let asked = '';

  const look = async () => {
    asked = kinds.value;
    const mine = asked;
    start.ariaDisabled = 'true'; // `disabled` would take the focus away
    let text;
    let canStart = false;
    try {
      const offer = await call('models_copy', model, mine);
      text = offer.refusal || offer.words;
      canStart = !offer.refusal;
    } catch (error) {
      text = error.message;
    }
    if (mine !== asked) return;
    setText(words, text);
    start.ariaDisabled = canStart ? null : 'true';
  };
  kinds.addEventListener('change', look);
  look();
  return {
    content: [
      make('label', { className: 'lt-model-kinds' }, 'Type of the copy', kinds), words,
      make('div', { className: 'lt-model-actions' }, start, keep),
    ],
    first: kinds,
    type: () => kinds.value,
  };
}
