"""Authorization: asking the auth servers, what they grant, and what a connection may do."""
