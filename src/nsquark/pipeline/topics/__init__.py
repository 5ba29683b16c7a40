"""What a command finds out about topics before and while it reads them."""
