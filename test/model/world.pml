/* Copyright The Tenure Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What a candidate lives in: the store, time, and people.
 */

/* What the store does with what candidate c has sent. */
proctype store(byte c) {
end:	do
	:: d_step { !cut && w_stage[c] == SENT ->
		apply(c, w_op[c], w_new[c], w_nonce[c], w_epoch[c], w_pref[c]);
		w_stage[c] = (ok -> APPLIED : CONFLICT);
#ifdef M_D_SHRUNK
		if :: ok -> r_short = w_short[c] :: else fi;
#endif
		w_cur[c] = ok;
		tidyUp() }
	/* a write that its sender gave up on */
	:: d_step { !cut && z_op[c] && faulty ->
#ifdef M_D_SHRUNK
		used = z_short[c];
#endif
		apply(c, z_op[c], z_new[c], z_nonce[c], z_epoch[c], z_pref[c]);
#ifdef M_D_SHRUNK
		if :: ok -> r_short = used :: else fi;
#endif
		clearZombie(c);
		tidyUp() }
	od
}

#ifdef M_RETAKE_LATE
#define RETAKE_LATE 1
#else
#define RETAKE_LATE 0
#endif

/* A tick of true time. It waits for nobody while there are faults: any message,
 * timer or process may be late. Once they have stopped, all that is due is done
 * first. At a term's deadline its work is killed, also that of a frozen process. */
inline tick(order) {
	for (i : 0 .. N*ATT-1) {
		if
		:: a_nonce[i] == 0
		:: a_nonce[i] && a_age[i] + 1 >= RETAKE && !RETAKE_LATE -> a_nonce[i] = 0; a_age[i] = 0
		:: a_nonce[i] && a_age[i] + 1 >= RETAKE && RETAKE_LATE -> a_age[i] = RETAKE
		:: a_nonce[i] && a_age[i] + 1 < RETAKE -> a_age[i]++
		fi
	}
	for (k : 0 .. N-1) {
		if
		:: working(k) -> t_age[k]++
		:: !working(k) && s_kind[k] != UNSEEN && s_age[k] < AGEMAX -> s_age[k]++
		:: else
		fi;
		if
		:: orphan[k] -> orphan[k]--
		:: else
		fi;
		if
		:: working(k) && t_age[k] >= VALID ->
			endTerm(k)
		:: else
		fi;
		todo[k] = calm
	}
	if
	:: f_nonce && f_age < WAITX -> f_age++
	:: else
	fi;
	T = top;
#ifdef STEADY
	STANDS(phase[0] == LEADING);
	losses = 0; orders = 0; /* so many per tick, for ever */
#endif
#ifdef CALM_ORDERS
	if
	:: order && calm && r_kind == HELD ->
		r_pref = (r_pref == NOTE -> 0 : NOTE);
		changed()
	:: else
	fi;
#endif
	if
	:: calm ->
		gap++;
		for (i : 0 .. N-1) {
			if
			:: alive(i) && phase[i] == LEADING -> gap = 0
			:: else
			fi
		}
		LIVENESS(gap <= BOUND)
	:: else
	fi;
	checkOne();
	tidyUp();
	moves = 0
}

#if N > 2
#define allQuiet (quiet(0) && quiet(1) && quiet(2))
#else
#define allQuiet (quiet(0) && quiet(1))
#endif
#define mayTick (!cut && (!calm || allQuiet))

/* The one process that may not come to a stand: but for a run that is cut off
 * there is always a next tick. */
proctype clock() {
	do
	:: cut -> break
	:: d_step { mayTick -> tick(0) }
#ifdef CALM_ORDERS
	:: d_step { mayTick && calm && r_kind == HELD -> tick(1) }
#endif
	od
}

#define canOrder (!cut && faulty && may(orders, ORDERS) && r_kind == HELD)

inline order(pref) {
	orders++;
	r_pref = pref;
	changed();
	tidyUp()
}

inline stopFaults(gone) {
	calm = 1;
	dead = gone;
	b_kind = 0; b_nonce = 0; b_holder = 0; b_epoch = 0;
	f_nonce = 0; f_age = 0;
	losses = 0; crashes = 0; deletes = 0; garbles = 0; restores = 0; orders = 0; forces = 0;
	for (i : 0 .. N-1) {
		clearZombie(i);
		todo[i] = alive(i);
		if
		:: !alive(i) -> clearWrite(i)
		:: else
		fi
	};
	tidyUp()
}

/* What people and other programs do to the record. All are conditional on the
 * version, so the moment of their being applied is the only one that counts. */
proctype people() {
end:	do
	/* an order: nonce, epoch and holder stay. code: order */
	:: d_step { canOrder -> order(NOTE) }
#ifndef STEADY
	:: d_step { canOrder -> order(1) }
	:: d_step { canOrder -> order(2) }
#endif
	:: d_step { !cut && !calm && may(deletes, DELETES) && r_kind != ABSENT ->
		deletes++;
		r_kind = ABSENT; r_nonce = 0; r_holder = 0; r_epoch = 0; r_pref = 0;
		changed();
		tidyUp() }
	:: d_step { !cut && !calm && may(garbles, GARBLES) && r_kind != ABSENT ->
		garbles++;
		r_kind = GARBLED; r_nonce = 0; r_holder = 0; r_epoch = 0; r_pref = 0;
		changed();
		tidyUp() }

	/* A copy of a held record is kept, and written back later: an earlier nonce
	 * or a lower epoch. Restoring a *released* record is not among the faults: a
	 * process that has seen no later epoch takes it at once, and rightly, since
	 * nothing in it tells it from a release. Nor is a restored record met by an
	 * order before a standby has polled, in the configurations that must be clean:
	 * the standby takes both for the order alone and goes on with its wait. The
	 * test "an order on a restored record" shows that this is a limit. */
	:: d_step { !cut && !calm && may(restores, RESTORES) && b_kind == 0 && r_kind == HELD && r_pref == 0 ->
		b_kind = r_kind; b_nonce = r_nonce; b_holder = r_holder; b_epoch = r_epoch;
		tidyUp() }
	:: d_step { !cut && !calm && may(restores, RESTORES) && b_kind != 0 && r_nonce != b_nonce ->
		restores++;
		r_kind = b_kind; r_nonce = b_nonce; r_holder = b_holder; r_epoch = b_epoch; r_pref = 0;
		changed();
		b_kind = 0; b_nonce = 0; b_holder = 0; b_epoch = 0;
		tidyUp() }

	/* a forced release: a stopper, waited out, then emptied, by a write that is
	 * conditional on the stopper's own version: one that was restored meanwhile
	 * may have been taken over before. code: ForceRelease, stopperOver, empty */
	:: d_step { !cut && !calm && may(forces, FORCES) && r_kind == HELD && r_holder != STOPPER ->
		forces++;
		e = (T > r_epoch -> T : r_epoch) + 1;
		if
		:: e > EMAX -> cut = 1
		:: else ->
			r_nonce = FRESH; r_holder = STOPPER; r_epoch = e; r_pref = 0;
			changed();
			noteEpoch(e);
			f_nonce = FRESH; f_age = 0
		fi;
		tidyUp() }
	:: d_step { !cut && !calm && f_nonce && f_age >= STOPPERWAIT ->
		r_kind = RELEASED; r_holder = 0; r_pref = 0; r_nonce = FRESH;
		changed();
		tidyUp() }

#if defined(LIVE) && !defined(STEADY)
	/* faults stop; perhaps one candidate is gone for good */
	:: d_step { !cut && !calm -> stopFaults(0) }
	:: d_step { !cut && !calm -> stopFaults(1) }
	:: d_step { !cut && !calm -> stopFaults(2) }
#endif
	od
}
