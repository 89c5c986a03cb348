module tenure.dev

go 1.26
