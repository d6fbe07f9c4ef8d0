"""Speed and memory, as ratios against peers and a plain loop in the same run: `make bench`."""
