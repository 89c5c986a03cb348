/* Copyright The Tenure Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The election of Tenure in discrete time. README.md beside this file says
 * what is modelled, what is left out, and which configurations are run.
 *
 * A macro M_… plants one mistake; spin must find each of them. "code:" names the
 * Go functions, in the root of this module, that an action stands for.
 */

#ifndef N
#define N 2             /* candidates */
#endif
#ifndef D
#define D 3             /* lease duration, in ticks of true time */
#endif
#ifndef R
#define R 1             /* renew deadline */
#endif
#ifndef EMAX
#define EMAX 4          /* a run that would need a greater epoch is cut off */
#endif

#ifndef RETAKE
#define RETAKE VALID    /* own nonce may be retaken before this true age, not D on a slow clock */
#endif

/* Budgets: how often each fault may strike in one run, and all together. */
#ifndef FAULTS
#define FAULTS 255
#endif
#ifndef LOSSES
#define LOSSES 0        /* writes given up on: lost, or applied late */
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef DELETES
#define DELETES 0
#endif
#ifndef GARBLES
#define GARBLES 0
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef ORDERS
#define ORDERS 0
#endif
#ifndef FORCES
#define FORCES 0        /* forced releases */
#endif

/* What a candidate measures on its own clock. A clock may be off by one tick
 * over D, so an interval of V of its ticks may last V+1 true ones, and one of W
 * may be over after W-1. Only the harmful end is explored: a term ends late, a
 * wait ends early. */
#ifdef M_DRIFT_IGNORED
#define V D
#define W D
#else
#define V (D-1)         /* D(1-rho) - margin */
#define W (D+1)         /* D(1+rho) + margin */
#endif
#define X ((3*D+1)/2)   /* 1.5 D */
#define VALID (V+1)
#define WAIT (W-1)
#define WAITX (X-1)
#ifdef M_STOPPER_NOT_WAITED
#define STOPPERWAIT 0
#else
#define STOPPERWAIT WAITX
#endif
#define AGEMAX X

/* kinds of a record */
#define UNSEEN 0        /* nothing was read yet, or what was read means nothing any more */
#define ABSENT 1
#define HELD 2
#define RELEASED 3
#define GARBLED 4       /* also '{}', null, truncated */
/* phases of a candidate */
#define STANDBY 0
#define LEADING 1
#define DRAIN 2         /* the guarded context has ended, the work has not */
/* what a write does */
#define ACQUIRE 1
#define RENEW 2
#define RELEASE 3
#define CREATE 4        /* a stopper over absence, create-only */
/* how far a write is */
#define SENT 1
#define APPLIED 2       /* its answer travels */
#define CONFLICT 3      /* so does this one */
/* holders and preferred holders: 0 nobody, c+1 candidate c */
#define STOPPER 7
#define NOTE 6          /* an order that asks nothing of the leader */

#define ATT 3           /* attempts that a candidate remembers, newest first */
#define A(c,i) ((c)*ATT+(i))

/* the register */
byte r_kind, r_nonce, r_holder, r_epoch, r_pref;
/* a copy that somebody kept, and may write back */
byte b_kind, b_nonce, b_holder, b_epoch;
/* the store's clock as epochs see it: no less than any epoch that was written
 * before the last tick, since there is at most one term a second for long */
byte T, top;
byte lastEpoch;         /* of the last term that began: a ghost for I2 */

/* a candidate: its term */
byte phase[N], t_age[N], t_epoch[N];
bit  t_rel[N];          /* release after draining */
bit  t_vol[N];          /* it ended of its own will: renewed while draining */
byte t_pref[N];         /* to whom */
byte orphan[N];         /* true time that work of a crashed process may go on */
/* its attempts to write: nonce, and time since the sending */
byte a_nonce[N*ATT], a_age[N*ATT];
/* what it saw last, and for how long it has seen that nonce */
byte s_kind[N], s_nonce[N], s_holder[N], s_epoch[N], s_pref[N], s_age[N];
bit  s_cur[N];          /* the version it knows is the register's */
byte seen[N];           /* the highest epoch it has seen */
bit  doubt[N];          /* must read before it may write */
/* its write on the way, and one that it gave up on and that may still land */
byte w_stage[N], w_op[N], w_nonce[N], w_epoch[N], w_pref[N];
bit  w_new[N], z_new[N]; /* create-only: good whenever nothing is there */
bit  w_cur[N];          /* applied, and still what is there */
byte z_op[N], z_nonce[N], z_epoch[N], z_pref[N];

/* a forced release: the stopper's nonce while its version stands, and how long
 * its author has waited */
byte f_nonce, f_age;

byte losses, crashes, deletes, garbles, restores, orders, forces;
bit cut;
#define may(kind, budget) (kind < budget && losses + crashes + deletes + garbles + restores + orders + forces < FAULTS)

/* once faults have stopped */
bit calm;
byte dead;              /* c+1: that candidate never comes back */
bit todo[N];            /* its renewal or poll of this tick is still to do */
byte gap;               /* ticks without a leader */
byte moves;             /* since the last tick */
#ifndef BOUND
#define BOUND (X+2)
#endif

#ifdef M_D_SHRUNK
bit r_short, w_short[N], z_short[N], s_short[N];
#endif

/* scratch, dead outside a d_step */
hidden byte i, j, n, e, k;
hidden byte ok, used;

/* ---- names ----
 *
 * Versions are only ever compared with the register's, so a bit says all of
 * one: "still current". Nonces are only compared with each other, so they are
 * renumbered after each step, in the order of their places; what can never
 * match anything any more is dropped. Neither changes what can happen, and both
 * make the states finite without an end of time. */

#define FRESH 30
#ifdef M_ABSENCE_WAITED
#define KEEPABSENT 1
#else
#define KEEPABSENT 0
#endif

c_code {
	static unsigned char newName[32], lastName;

	static unsigned char name(unsigned char x)
	{
		if (x == 0) return 0;
		if (newName[x] == 0) newName[x] = ++lastName;
		return newName[x];
	}

	static void tidy(void)
	{
		int c, q, w;
		for (c = 0; c < N; c++) {
			if (!now.s_cur[c] && now.phase[c] == STANDBY && now.s_kind[c] != UNSEEN &&
			    !(now.s_kind[c] == ABSENT && KEEPABSENT) &&
			    !(now.s_kind[c] == HELD && (now.s_nonce[c] == now.r_nonce || now.s_nonce[c] == now.b_nonce))) {
				now.s_kind[c] = UNSEEN; now.s_nonce[c] = 0; now.s_holder[c] = 0;
				now.s_epoch[c] = 0; now.s_pref[c] = 0; now.s_age[c] = 0;
			}
			for (q = w = 0; q < ATT; q++) {
				unsigned char x = now.a_nonce[c*ATT+q], g = now.a_age[c*ATT+q];
				if (x != 0 && (x == now.r_nonce || x == now.b_nonce || x == now.w_nonce[c] ||
				    (now.z_op[c] && x == now.z_nonce[c]))) {
					now.a_nonce[c*ATT+w] = x; now.a_age[c*ATT+w] = g; w++;
				}
			}
			for (; w < ATT; w++) { now.a_nonce[c*ATT+w] = 0; now.a_age[c*ATT+w] = 0; }
		}
		for (q = 0; q < 32; q++) newName[q] = 0;
		lastName = 0;
		now.r_nonce = name(now.r_nonce);
		now.b_nonce = name(now.b_nonce);
		now.f_nonce = name(now.f_nonce);
		for (c = 0; c < N; c++) {
			now.s_nonce[c] = name(now.s_nonce[c]);
			now.w_nonce[c] = name(now.w_nonce[c]);
			now.z_nonce[c] = name(now.z_nonce[c]);
			for (q = 0; q < ATT; q++) now.a_nonce[c*ATT+q] = name(now.a_nonce[c*ATT+q]);
		}
	}
}

#ifndef MOVES
#define MOVES 30        /* once faults have stopped, time must go on */
#endif
#define tidyUp() c_code { tidy(); if (now.calm) now.moves++; }; assert(moves <= MOVES)

/* The register has changed: nobody knows its version, and what was conditional
 * on the old one will not happen. */
inline changed() {
	f_nonce = 0; f_age = 0;
	for (i : 0 .. N-1) {
		s_cur[i] = 0;
		w_cur[i] = 0;
		if
		:: w_stage[i] == SENT && !w_new[i] -> w_stage[i] = CONFLICT
		:: else
		fi;
		if
		:: z_op[i] && !z_new[i] -> clearZombie(i)
		:: else
		fi
	}
}

inline clearZombie(c) {
	z_op[c] = 0; z_nonce[c] = 0; z_epoch[c] = 0; z_pref[c] = 0; z_new[c] = 0
}

inline noteEpoch(x) {
	if
	:: x > top -> top = x
	:: else
	fi
}

/* ---- properties ----
 *
 * ONLY=n leaves one property to be checked: a planted mistake must break the
 * one that it is about, not just any. */

#ifndef ONLY
#define ONLY 0
#endif
#define I1(x) assert((ONLY != 0 && ONLY != 1) || (x))
#define I2(x) assert((ONLY != 0 && ONLY != 2) || (x))
#define I7(x) assert((ONLY != 0 && ONLY != 7) || (x))
#define LIVENESS(x) assert((ONLY != 0 && ONLY != 8) || (x)) /* somebody leads, in time */
#define STANDS(x) assert((ONLY != 0 && ONLY != 9) || (x))   /* a term ends for no trifle */

#define working(c) (phase[c] != STANDBY)
#define valid(c) (phase[c] != STANDBY && t_age[c] < VALID)

/* I1, with the guarded work: no two terms, nor what a crash left of one. */
inline checkOne() {
	j = 0;
	for (i : 0 .. N-1) {
		j = j + (valid(i) -> 1 : 0) + (orphan[i] -> 1 : 0);
		I1(!working(i) || t_age[i] < VALID) /* work only inside a term */
	}
	I1(j <= 1)
}

/* ---- the store: a linearizable compare-and-swap ---- */

inline apply(c, op, isNew, nonce, epoch, pref) {
	if
	:: !isNew || r_kind == ABSENT ->
		ok = 1;
		if
		:: op == RENEW ->
			/* a renewal never replaces what is not the leader's own */
			I2(r_kind == HELD && r_holder == c+1 && r_epoch == epoch)
		:: op == RELEASE ->
			I7(!working(c) && orphan[c] == 0);
			I2(r_kind == HELD && r_holder == c+1 && r_epoch == epoch)
		:: else ->
			I2(epoch > r_epoch)
		fi;
		n = nonce; /* changed() drops it */
		e = epoch; j = pref; k = op;
		changed();
		r_kind = (k == RELEASE -> RELEASED : HELD);
		r_holder = (k == RELEASE -> 0 : (k == CREATE -> STOPPER : c+1));
		r_nonce = n;
		r_epoch = e;
		r_pref = j;
		noteEpoch(e)
	:: else -> ok = 0
	fi
}

/* ---- a candidate ---- */

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
