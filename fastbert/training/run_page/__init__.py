"""A self-contained web page that compares runs: `page.write_page`, with its markup, style and script beside it."""
