"""Parts of pages: cells and rows, numbers and times, links, graphs, sorting and paging."""
