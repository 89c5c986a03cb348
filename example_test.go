// Copyright The Tenure Authors
// SPDX-License-Identifier: Apache-2.0

package tenure_test

import (
	"context"
	"fmt"
	"log"

	"tenure.dev"
	"tenure.dev/store/mem"
)

func Example() {
	ctx := context.Background()
	// A lock that somebody has made, and nobody holds.
	if _, err := tenure.Init(ctx, mem.Named("example"), tenure.InitOptions{Who: "me", FirstEver: true}); err != nil {
		log.Fatal(err)
	}
	lock, err := tenure.Open(ctx, "mem://example?ttl=5s", tenure.Vars{})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := tenure.New(lock.Options())
	if err != nil {
		log.Fatal(err)
	}
	err = elector.Run(ctx, func(ctx context.Context, term *tenure.Term) error {
		fmt.Println("leading:", term.Valid(), term.Epoch() > 0)
		return nil // done: the lock is released
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: leading: true true
}
