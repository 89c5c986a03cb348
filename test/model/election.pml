/* Copyright The Tenure Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The election of Tenure in discrete time. README.md beside this file says
 * what is modelled, what is left out, and which configurations are run.
 *
 * A macro M_… plants one mistake; spin must find each of them. "code:" names the
 * Go functions, in the root of this module, that an action stands for.
 */

#include "state.pml"
#include "candidate.pml"
#include "world.pml"

init {
	atomic {
		r_kind = ABSENT;
		for (i : 0 .. N-1) { s_kind[i] = UNSEEN }
		if
#ifndef STEADY
		:: skip /* a new lock */
#endif
		:: /* candidate 0 leads */
			r_kind = HELD; r_nonce = 1; r_holder = 1; r_epoch = 1;
			T = 1; top = 1; lastEpoch = 1;
			phase[0] = LEADING; t_epoch[0] = 1; seen[0] = 1;
			a_nonce[0] = 1;
			s_kind[0] = HELD; s_cur[0] = 1; s_nonce[0] = 1; s_holder[0] = 1; s_epoch[0] = 1
#ifdef STEADY
			; calm = 1
#endif
		fi;
		run candidate(0);
		run candidate(1);
#if N > 2
		run candidate(2);
		run store(2);
#endif
		run store(0);
		run store(1);
		run clock();
		run people()
	}
}
