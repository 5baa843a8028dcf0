"""The programs that made the bundled demo model: its data, training, evaluation and packaging."""
