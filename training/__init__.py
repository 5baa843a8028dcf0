"""How the bundled demo model was made: data, training, evaluation and packaging."""
