// What follows from each change of the form: it is kept, the notice may no longer apply, and the server describes it.
import { describe } from './describe.js';
import { keepSettings } from './keep.js';
import { check } from './notice.js';

/** Act on a change of the form's values. */
export function changed() {
  keepSettings();
  check();
  describe();
}
