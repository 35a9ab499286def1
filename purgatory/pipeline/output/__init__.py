"""What the commands write into a directory: table files, figures, and one HTML page."""
