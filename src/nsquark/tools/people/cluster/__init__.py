"""The daemons that a command is about: which ones, how they are asked, and what their answers add up to."""
