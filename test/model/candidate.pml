/* Copyright The Tenure Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * A candidate: the rules of the election.
 */

/* The place of a nonce among the candidate's own attempts, ATT if it is none. */
inline find(c, nonce) {
	k = 0;
	do
	:: k < ATT && (nonce == 0 || a_nonce[A(c,k)] != nonce) -> k++
	:: else -> break
	od
}

inline forget(c, from) {
	for (i : 0 .. ATT-1) {
		if
		:: i >= from -> a_nonce[A(c,i)] = 0; a_age[A(c,i)] = 0
		:: else
		fi
	}
}

/* send: t0 is now, the write may be applied at any later moment. code: write,
 * begin */
inline send(c, op, isNew, epoch, pref) {
	w_stage[c] = SENT;
	w_op[c] = op;
	w_nonce[c] = FRESH;
	w_epoch[c] = epoch;
	w_pref[c] = pref;
	w_new[c] = isNew;
	if
	:: op == ACQUIRE || op == RENEW ->
		a_nonce[A(c,2)] = a_nonce[A(c,1)]; a_age[A(c,2)] = a_age[A(c,1)];
		a_nonce[A(c,1)] = a_nonce[A(c,0)]; a_age[A(c,1)] = a_age[A(c,0)];
		a_nonce[A(c,0)] = FRESH; a_age[A(c,0)] = 0
	:: else -> forget(c, 0) /* a release, sent, is the end of all attempts */
	fi
}

inline endTerm(c) {
	phase[c] = STANDBY;
	t_age[c] = 0; t_epoch[c] = 0; t_rel[c] = 0; t_vol[c] = 0; t_pref[c] = 0;
	s_age[c] = 0;
	doubt[c] = 1
}

inline beginTerm(c, age) {
	phase[c] = LEADING;
	t_age[c] = age;
	t_epoch[c] = s_epoch[c];
	s_age[c] = 0;
	checkOne();
	I2(t_epoch[c] > lastEpoch);
	lastEpoch = t_epoch[c]
}

inline drain(c, rel, vol, pref) {
	phase[c] = DRAIN;
	t_vol[c] = vol;
	t_rel[c] = rel;
	t_pref[c] = pref
}

inline clearWrite(c) {
	w_stage[c] = 0; w_op[c] = 0; w_new[c] = 0; w_cur[c] = 0; w_nonce[c] = 0; w_epoch[c] = 0; w_pref[c] = 0;
#ifdef M_D_SHRUNK
	w_short[c] = 0;
#endif
	skip
}

#define sameState(c) (s_kind[c] == r_kind && s_nonce[c] == r_nonce && s_cur[c])
#ifdef M_ORDER_RESETS_WAIT
#define isOrder(c) 0
#elif defined(M_RESTORE_UNNOTICED)
#define isOrder(c) (s_kind[c] == HELD && r_kind == HELD && s_nonce[c] == r_nonce)
#else
#define isOrder(c) (s_kind[c] == HELD && r_kind == HELD && s_nonce[c] == r_nonce && s_pref[c] != r_pref)
#endif
#ifdef M_ABSENCE_WAITED
#define sameAbsence(c) (s_kind[c] == ABSENT && r_kind == ABSENT)
#else
#define sameAbsence(c) 0
#endif
/* A write that is not waited for any longer may still be applied. */
inline giveUp(c) {
	if
	:: w_stage[c] == SENT ->
		z_op[c] = w_op[c]; z_new[c] = w_new[c]; z_nonce[c] = w_nonce[c];
#ifdef M_D_SHRUNK
		z_short[c] = w_short[c];
#endif
		z_epoch[c] = w_epoch[c]; z_pref[c] = w_pref[c]
	:: else
	fi;
	clearWrite(c)
}

/* What a read brings, at the arrival of its answer. The wait goes on for the
 * same nonce, unless the same bytes came back under another version. took is 0; the mistake of counting
 * from the start of the read makes it 1.
 * code: see, unchanged */
inline sight(c, took) {
	if
	:: sameState(c) || isOrder(c) || sameAbsence(c)
	:: !(sameState(c) || isOrder(c) || sameAbsence(c)) ->
		s_age[c] = took
	fi;
	s_kind[c] = r_kind; s_cur[c] = 1; s_nonce[c] = r_nonce;
	s_holder[c] = r_holder; s_epoch[c] = r_epoch; s_pref[c] = r_pref;
#ifdef M_D_SHRUNK
	s_short[c] = r_short;
#endif
	doubt[c] = 0;
	todo[c] = 0
}

inline noteSeen(c) {
	if
	:: s_epoch[c] > seen[c] -> seen[c] = s_epoch[c]
	:: else
	fi
}

/* code: standing, isOurs */
#define own(c) (s_kind[c] == HELD && s_nonce[c] != 0 && \
	(s_nonce[c] == a_nonce[A(c,0)] || s_nonce[c] == a_nonce[A(c,1)] || s_nonce[c] == a_nonce[A(c,2)]))
/* code: classify */
#define unreadable(c) (s_kind[c] == GARBLED || s_epoch[c] < seen[c])
#ifdef M_D_SHRUNK
#define WAITN(c) (s_short[c] -> WAIT-1 : WAIT)
#else
#define WAITN(c) WAIT
#endif
#define wait(c) ((unreadable(c) || s_holder[c] == STOPPER) -> WAITX : WAITN(c))

#ifdef M_ABSENT_AT_ONCE
#define absentDue(c) 1
#elif defined(M_ABSENCE_WAITED)
#define absentDue(c) (s_age[c] >= WAITX)
#else
#define absentDue(c) 1
#endif
#ifdef M_GARBLED_RELEASED
#define free(c) (s_kind[c] == GARBLED || (s_kind[c] == RELEASED && !unreadable(c)))
#else
#define free(c) (s_kind[c] == RELEASED && !unreadable(c))
#endif
#ifdef M_PREFERRED_FOREVER
#define PREFERRED 255
#else
#define PREFERRED (D-1)
#endif
#ifdef M_IDENTITY_SHORTENS
#define mine(c) (s_kind[c] == HELD && s_holder[c] == c+1)
#else
#define mine(c) own(c)
#endif

/* due: the wait is over, or there is nothing to wait for. A write on a version
 * that is no more would only be refused: it is left out. code: takeAt, waiting,
 * retakes */
#define due(c) (phase[c] == STANDBY && w_stage[c] == 0 && !doubt[c] && s_kind[c] != UNSEEN && (s_cur[c] || (s_kind[c] == ABSENT && r_kind == ABSENT)) && ( \
	(s_kind[c] == ABSENT && absentDue(c)) || \
	(free(c) && (s_pref[c] == 0 || s_pref[c] == c+1 || s_age[c] >= PREFERRED)) || \
	(mine(c) && !unreadable(c)) || \
	(s_kind[c] != ABSENT && !free(c) && s_age[c] >= wait(c))))

#ifdef STEADY
#define faulty 1
#else
#define faulty (!calm)
#endif
#define alive(c) (dead != c+1)
#define quiet(c) (!alive(c) || (w_stage[c] == 0 && !todo[c] && !doubt[c] && phase[c] != DRAIN && !due(c)))

/* code: nextEpoch */
inline nextEpoch(c) {
#ifdef M_EPOCH_RESTARTS
	e = s_epoch[c] + 1
#else
	e = s_epoch[c];
	if :: seen[c] > e -> e = seen[c] :: else fi;
	if :: T > e -> e = T :: else fi;
	e++
#endif
}

#ifdef M_DEADLINE_FROM_ANSWER
#define DEADLINE_FROM_ANSWER 1
#else
#define DEADLINE_FROM_ANSWER 0
#endif

/* The answer to an acquisition: a term, if R of it is left. code: onAcquired,
 * tooLate, beginTerm */
inline onAcquired(c) {
	find(c, w_nonce[c]);
	ok = (k < ATT);
	if
	:: ok -> j = a_age[A(c,k)]
	:: else -> j = VALID
	fi;
	forget(c, k+1);
	s_kind[c] = HELD; s_cur[c] = w_cur[c]; s_nonce[c] = w_nonce[c];
	s_holder[c] = c+1; s_epoch[c] = w_epoch[c]; s_pref[c] = 0; s_age[c] = 0;
#ifdef M_D_SHRUNK
	s_short[c] = 0;
#endif
	noteSeen(c);
	clearWrite(c);
#ifdef M_LATE_ANSWER_BEGINS
	if :: true -> beginTerm(c, j) fi
#else
	if
#ifdef M_DEADLINE_FROM_ANSWER
	:: true -> beginTerm(c, 0)
#else
	:: ok && j + R <= VALID -> beginTerm(c, j)
	:: else /* own nonce stands: retake it, or wait like anybody */
#endif
	fi
#endif
}

/* The answer to a renewal. It extends a term that is not over. code: onRenewed,
 * wrote, confirm */
inline onRenewed(c) {
	find(c, w_nonce[c]);
	s_cur[c] = w_cur[c]; s_nonce[c] = w_nonce[c]; s_pref[c] = w_pref[c];
#ifdef M_D_SHRUNK
	s_short[c] = w_short[c];
#endif
	if
	:: k < ATT ->
		forget(c, k+1);
		if
		:: working(c) -> t_age[c] = (DEADLINE_FROM_ANSWER -> 0 : a_age[A(c,k)])
		:: else
		fi
	:: k == ATT && DEADLINE_FROM_ANSWER && working(c) -> t_age[c] = 0
	:: else
	fi;
	clearWrite(c);
	checkOne()
}

#ifdef M_OWN_LOST_IS_LOSS
#define OWN_LOST_IS_LOSS 1
#else
#define OWN_LOST_IS_LOSS 0
#endif

/* A leader's read, after a conflict or in doubt. code: readByHolder, confirm,
 * heed, lose */
inline onLeaderRead(c) {
	find(c, r_nonce);
	ok = (r_nonce == s_nonce[c]); /* what it knew to stand */
	sight(c, 0);
	if
#ifdef M_ORDER_IS_LOSS
	:: r_kind == HELD && k < ATT && ok && r_pref -> lose(c)
#endif
	:: r_kind == HELD && k < ATT && (ok || !OWN_LOST_IS_LOSS) ->
		/* ours: counts from the sending of that very attempt */
		t_age[c] = a_age[A(c,k)];
		forget(c, k+1);
		if
		:: phase[c] == LEADING && r_pref != 0 && r_pref != c+1 && r_pref != NOTE ->
			drain(c, 1, 1, r_pref) /* a handover */
		:: else -> todo[c] = calm /* an order, or not applied: write again */
		fi
#ifdef M_STOPPER_IS_ORDER
	:: r_kind == HELD && r_holder == STOPPER -> todo[c] = calm
#endif
	:: else -> noteSeen(c); lose(c)
	fi
}

inline lose(c) {
	forget(c, 0);
	drain(c, 0, 0, 0)
}

#ifdef M_LEAD_FROM_READ
#define LEAD_FROM_READ 1
#else
#define LEAD_FROM_READ 0
#endif

#define canPoll(c) (!cut && alive(c) && phase[c] == STANDBY && w_stage[c] == 0 && (!calm || todo[c] || doubt[c]))
#define renews(c) (phase[c] == LEADING || (phase[c] == DRAIN && t_vol[c]))
#define canRenew(c) (!cut && alive(c) && renews(c) && w_stage[c] == 0 && !doubt[c] && \
	(calm -> todo[c] && phase[c] == LEADING : t_age[c] > 0))

inline onStandbyRead(c, took) {
	sight(c, took);
	if
	:: LEAD_FROM_READ && own(c) -> beginTerm(c, 0)
	:: (!LEAD_FROM_READ || !own(c)) && !unreadable(c) -> noteSeen(c)
	:: else
	fi
}

proctype candidate(byte c) {
end:	do
	/* poll: a standby reads. code: proceedStandby, onRead, afterPoll */
	:: d_step { canPoll(c) -> onStandbyRead(c, 0); tidyUp() }
#ifdef M_WAIT_FROM_READ
	:: d_step { canPoll(c) -> onStandbyRead(c, 1); tidyUp() }
#endif

	/* the wait is over, or nothing is to be waited for. code: proceedStandby,
	 * takeAt, createStopper, acquire */
	:: d_step { !cut && alive(c) && due(c) ->
		nextEpoch(c);
		if
		:: e > EMAX -> cut = 1
#if !defined(M_ABSENT_AT_ONCE) && !defined(M_ABSENCE_WAITED)
		:: e <= EMAX && s_kind[c] == ABSENT -> send(c, CREATE, 1, e, 0)
#endif
		:: else -> j = (s_kind[c] == ABSENT); send(c, ACQUIRE, j, e, 0)
		fi;
		tidyUp() }

	/* renew: once per P. What somebody has changed meanwhile it finds out by a
	 * refusal. code: renews, renew */
	:: d_step { canRenew(c) && s_cur[c] -> j = (t_vol[c] -> s_pref[c] : 0); send(c, RENEW, 0, t_epoch[c], j); tidyUp() }
	:: d_step { canRenew(c) && !s_cur[c] -> doubt[c] = 1 }
#ifdef M_D_SHRUNK
	:: d_step { canRenew(c) && s_cur[c] -> send(c, RENEW, 0, t_epoch[c], 0); w_short[c] = 1; tidyUp() }
#endif

	/* a leader in doubt reads. code: renew, onRead */
	:: d_step { !cut && alive(c) && working(c) && (phase[c] == LEADING || t_rel[c]) && w_stage[c] == 0 && doubt[c] ->
		onLeaderRead(c);
		checkOne();
		tidyUp() }

	/* an answer to a write arrives. code: onAcquired, onRenewed, onReleased,
	 * onCreated */
	:: d_step { !cut && alive(c) && w_stage[c] == APPLIED ->
		todo[c] = 0;
		if
		:: w_op[c] == ACQUIRE -> onAcquired(c)
		:: w_op[c] == RENEW -> onRenewed(c)
		:: w_op[c] == RELEASE || w_op[c] == CREATE ->
			todo[c] = calm;
			clearWrite(c);
			doubt[c] = 1 /* it reads what stands there now */
		fi;
		tidyUp() }
	/* a write was refused. code: refusedWrite, notTaken */
	:: d_step { !cut && alive(c) && w_stage[c] == CONFLICT ->
		clearWrite(c);
		doubt[c] = 1;
		tidyUp() }

	/* the request times out: it may be lost, may have been applied, may be
	 * applied yet. code: proceed, refusedWrite, notTaken */
	:: d_step { !cut && alive(c) && faulty && w_stage[c] != 0 && may(losses, LOSSES) ->
		losses++;
		giveUp(c);
		doubt[c] = 1;
		tidyUp() }

	/* t0 + R without success. code: proceedLeading, stop */
	:: d_step { !cut && alive(c) && phase[c] == LEADING && t_age[c] >= (calm -> R+1 : R) ->
		drain(c, 1, 0, 0) }

	/* asked to stop, or the work is done: release. code: onStop, stop */
	:: d_step { !cut && alive(c) && !calm && phase[c] == LEADING ->
#ifdef M_RELEASE_BEFORE_DRAIN
		if
		:: s_cur[c] && w_stage[c] == 0 && !doubt[c] -> send(c, RELEASE, 0, t_epoch[c], 0)
		:: else
		fi;
#endif
		drain(c, 1, 1, 0);
		tidyUp() }

	/* the guarded work has ended. code: onDrained, proceedReleasing, afterTerm */
	:: d_step { !cut && alive(c) && phase[c] == DRAIN && (w_stage[c] == 0 || !t_rel[c]) && (!t_rel[c] || !doubt[c] || !calm) ->
		e = t_epoch[c]; j = t_pref[c]; ok = t_rel[c] && w_stage[c] == 0 && !doubt[c] && s_cur[c];
		endTerm(c);
		if
		:: ok -> send(c, RELEASE, 0, e, j)
		:: else -> todo[c] = calm
		fi;
		tidyUp() }

	/* kill -9 and a new start: all memory is gone, what was sent is on its way,
	 * and the guarded work may outlive the process until its deadline */
	:: d_step { !cut && alive(c) && !calm && may(crashes, CRASHES) ->
		crashes++;
		if
		:: working(c) && VALID - t_age[c] > orphan[c] -> orphan[c] = VALID - t_age[c]
		:: else
		fi;
		giveUp(c);
		endTerm(c);
		forget(c, 0);
		s_kind[c] = UNSEEN; s_cur[c] = 0; s_nonce[c] = 0; s_holder[c] = 0;
		s_epoch[c] = 0; s_pref[c] = 0; seen[c] = 0;
		tidyUp() }
	od
}
