/* Copyright The Tenure Authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * What the model is made of: its bounds and budgets, the register and what a
 * candidate remembers, how names are kept few, and the properties.
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
