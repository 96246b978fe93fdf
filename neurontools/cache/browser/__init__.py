"""What a browser of a cache shows and what it marks, without a screen: tree, rows, marks, totals."""
