"""What several of our terminal programs use: lines, panes, keys, themes, the terminal itself."""
