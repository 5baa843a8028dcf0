// The names of a model's parts as people read them.
const PARTS = {
  transformer: 'Transformer', vae: 'VAE', text_encoder: 'Text encoder', tokenizer: 'Its tokenizer',
  text_encoder_2: 'Second text encoder', tokenizer_2: 'Its tokenizer', image_encoder: 'Image encoder',
  feature_extractor: 'Its image processor',
};

/** Return the name of a part. */
export const named = (part) => PARTS[part] ?? part;
