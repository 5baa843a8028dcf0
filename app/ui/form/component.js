// The form's Gradio component, which holds the server's description of the settings and calls the server.

let component = null;

/** Keep the component that Gradio hands out. */
export function connect(given) {
  component = given;
}

/** Return the server's last description of the settings. */
export function facts() {
  return component?.props.value || {};
}

/** Ask the server to describe the settings again. */
export function changed() {
  component?.trigger('submit');
}

/** Ask the server for the models to choose from. */
export function offerModels() {
  component?.trigger('load');
}

/** Let the form take the crop that `givenCrop` returns. */
export function moveCropOn() {
  component?.trigger('select');
}

/** Let the picture field take the picture that `givenPicture` holds. */
export function passPictureOn() {
  component?.trigger('input');
}

/** Let the form take the settings that `givenSettings` holds. */
export function passSettingsOn() {
  component?.trigger('apply');
}
