"""What models compute for the routes of the server, one file per kind of output."""
