// The form's own component of Gradio's: what the server says of the settings, and the way to call the server.

let component = null;

/** Take the component over, as Gradio hands it out. */
export function connect(given) {
  component = given;
}

/** Return what the server said last of the settings. */
export function facts() {
  return component?.props.value || {};
}

/** Ask the server to describe the settings anew. */
export function changed() {
  component?.trigger('submit');
}

/** Let the picture field take the picture that `givenPicture` holds. */
export function passPictureOn() {
  component?.trigger('input');
}
