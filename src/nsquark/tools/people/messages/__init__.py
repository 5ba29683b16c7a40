"""Messages: where `pub` gets them, how they are published, and how a person or a script reads them."""
