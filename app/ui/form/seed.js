// The choice of a seed.

const MOST_SEEDS = 2 ** 31;

/** Return a new seed. */
export const newSeed = () => Math.floor(Math.random() * MOST_SEEDS);
