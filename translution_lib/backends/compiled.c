/* Scores and values of all pairs, and their gradients, in one pass over the relations.

   The products are those of grouped.py. What a compiler adds: no call of torch for each
   relation, rows that are gathered, multiplied and added up while they are in the cache, and every core at work on
   relations of its own. Each thread adds to its own copy of what pairs share, so that equal inputs and equally many
   threads give equal bits. Arrays are float32 and dense; compiled.py describes them. */

#include <string.h>

#include "compiled_products.h"

#define ROWS 128        /* rows of a chunk: a few of them stay in the second cache, whatever a relation has */

typedef struct {
    size n, batch, heads, threads;
    const int *relation, *start;        /* of every relation with pairs: its matrix, its first pair; one more start */
    const int *query, *key;             /* tokens of every pair */
    const int *order, *part;            /* relations thread by thread, and where each thread's begin; one more */
} Plan;

typedef struct {                        /* one side of all pairs: rows x W[relation] */
    const float *x;                     /* n b c */
    const float *w;                     /* r c e, or none: the rows are projected already */
    float *kept;                        /* projected rows of all pairs, p b e, or none */
    float *dx, *dw;                     /* gradients: threads n b c, and r c e */
    size c, e, queries;                 /* queries: whether its tokens are the queries or the keys */
} Side;

typedef struct {                        /* some rows of one relation: pair by pair, and sample by sample of a pair */
    size thread, turn, relation, low, count, end;
    int first;                          /* whether the relation begins with them */
    size query[ROWS], key[ROWS];        /* rows of both tokens among the n·b rows of all tokens */
    size place[ROWS];                   /* of the first head's number in a table b h n n; heads lie n·n apart */
} Chunk;

/* Go on to the next rows of the relations of a thread; 0 if there are none. */
static int advance(const Plan *p, Chunk *at)
{
    at->low += at->count;
    at->first = at->low >= at->end;
    if (at->first) {
        if (at->turn == p->part[at->thread + 1])
            return 0;
        const int i = p->order[at->turn++];
        at->relation = p->relation[i];
        at->low = p->start[i] * p->batch;
        at->end = p->start[i + 1] * p->batch;
    }
    at->count = at->low + ROWS < at->end ? ROWS : at->end - at->low;
    size pair = at->low / p->batch, sample = at->low % p->batch;
    for (size i = 0; i < at->count; i++) {
        at->query[i] = p->query[pair] * p->batch + sample;
        at->key[i] = p->key[pair] * p->batch + sample;
        at->place[i] = (sample * p->heads * p->n + p->query[pair]) * p->n + p->key[pair];
        if (++sample == p->batch)
            pair++, sample = 0;
    }
    return 1;
}

static void gather(const float *x, size c, const size *token, size count, float *rows)
{
    for (size i = 0; i < count; i++)
        memcpy(rows + i * c, x + token[i] * c, c * sizeof(float));
}

static void scatter(const float *rows, size c, const size *token, size count, float *out)
{
    for (size i = 0; i < count; i++) {
        float *restrict to = out + token[i] * c;
        for (size j = 0; j < c; j++)
            to[j] += rows[i * c + j];
    }
}

static float inner(const float *u, const float *v, size d)
{
    vec many = {0};
    float sum = 0;
    size j = 0;
    for (; j + 8 <= d; j += 8)
        many += *(const vec *)(u + j) * *(const vec *)(v + j);
    for (; j < d; j++)
        sum += u[j] * v[j];
    for (j = 0; j < 8; j++)
        sum += many[j];
    return sum;
}

/* Inner products of rows per head, to a table b h n n. */
static void dot(const Plan *p, const Chunk *at, const float *u, const float *v, size e, float *table)
{
    const size d = e / p->heads;
    for (size i = 0; i < at->count; i++)
        for (size h = 0; h < p->heads; h++, u += d, v += d)
            table[at->place[i] + h * p->n * p->n] = inner(u, v, d);
}

/* Rows times the number of their pair, sample and head in a table b h n n. */
static void per_head(const Plan *p, const Chunk *at, const float *table, const float *u, size e, float *restrict out)
{
    const size d = e / p->heads;
    for (size i = 0; i < at->count; i++)
        for (size h = 0; h < p->heads; h++, u += d, out += d) {
            const float g = table[at->place[i] + h * p->n * p->n];
            for (size j = 0; j < d; j++)
                out[j] = g * u[j];
        }
}

static const size *tokens(const Side *s, const Chunk *at) { return s->queries ? at->query : at->key; }

/* Gathered rows times their matrix; `made` says that what is kept of them is there already. */
static const float *project(const Side *s, const Chunk *at, const float *rows, float *room, int made)
{
    if (!s->w)
        return rows;
    float *out = s->kept ? s->kept + at->low * s->e : room;
    if (!(made && s->kept))
        product(at->count, s->e, s->c, rows, s->c, 1, s->w + at->relation * s->c * s->e, 0, out, 0);
    return out;
}

/* Have a matrix in the second cache before it is read across its rows, which no hardware foresees. */
static void prefetch(const float *w, size count)
{
    for (size i = 0; i < count; i += 16)
        __builtin_prefetch(w + i, 0, 2);
}

/* Add the gradients of the matrix and of the tokens, from that of the projected rows, dy. */
static void back(const Plan *p, const Side *s, const Chunk *at, const float *rows, const float *dy, float *packed,
                 float *room)
{
    float *dx = s->dx + at->thread * p->n * p->batch * s->c;
    if (s->w) {
        const size begin = at->relation * s->c * s->e;
        if (at->first) {
            prefetch(s->w + begin, s->c * s->e);
            pack(s->c, s->e, s->w + begin, packed);
        }
        product(s->c, s->e, at->count, rows, 1, s->c, dy, 0, s->dw + begin, !at->first);
        product(at->count, s->c, s->e, dy, s->e, 1, packed, 1, room, 0);
    }
    scatter(s->w ? room : dy, s->c, tokens(s, at), at->count, dx);
}

static size most(size a, size b) { return a > b ? a : b; }

static size matrix(const Side *s) { return s->w ? s->c * s->e : 0; }

/* Numbers of a chunk's rows, whichever they are. */
static size rows_of(const Side *a, const Side *b) { return ROWS * most(most(a->c, a->e), most(b->c, b->e)); }

/* Floats that a thread needs of its own: five chunks of rows, and a packed matrix for each side. */
ptrdiff_t translution_room(const Side *a, const Side *b) { return 5 * rows_of(a, b) + matrix(a) + matrix(b); }

void translution_scores(const Plan *p, const Side *q, const Side *k, float *table, float *room)
{
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
    for (size t = 0; t < p->threads; t++) {
        const size step = rows_of(q, k);
        float *x_q = room + t * translution_room(q, k), *x_k = x_q + step;
        for (Chunk at = {.thread = t, .turn = p->part[t]}; advance(p, &at);) {
            gather(q->x, q->c, tokens(q, &at), at.count, x_q);
            gather(k->x, k->c, tokens(k, &at), at.count, x_k);
            dot(p, &at, project(q, &at, x_q, x_k + step, 0), project(k, &at, x_k, x_k + 2 * step, 0), q->e, table);
        }
    }
}

void translution_scores_back(const Plan *p, const Side *q, const Side *k, const float *grad, float *room)
{
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
    for (size t = 0; t < p->threads; t++) {
        const size step = rows_of(q, k);
        float *x_q = room + t * translution_room(q, k), *x_k = x_q + step, *y_q = x_k + step, *y_k = y_q + step;
        float *dy = y_k + step, *w_q = dy + step, *w_k = w_q + matrix(q);
        for (Chunk at = {.thread = t, .turn = p->part[t]}; advance(p, &at);) {
            gather(q->x, q->c, tokens(q, &at), at.count, x_q);
            gather(k->x, k->c, tokens(k, &at), at.count, x_k);
            const float *u = project(q, &at, x_q, y_q, 1);
            per_head(p, &at, grad, project(k, &at, x_k, y_k, 1), q->e, dy);
            back(p, q, &at, x_q, dy, w_q, y_k);
            per_head(p, &at, grad, u, q->e, dy);
            back(p, k, &at, x_k, dy, w_k, y_k);
        }
    }
}

/* The second side is the sum: x and c are its rows n b e for backward, and dx is where forward adds, threads n b e. */
void translution_values(const Plan *p, const Side *v, const Side *sum, const float *alpha, float *room)
{
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
    for (size t = 0; t < p->threads; t++) {
        const size step = rows_of(v, sum);
        float *x = room + t * translution_room(v, sum), *out = sum->dx + t * p->n * p->batch * sum->c;
        for (Chunk at = {.thread = t, .turn = p->part[t]}; advance(p, &at);) {
            gather(v->x, v->c, tokens(v, &at), at.count, x);
            per_head(p, &at, alpha, project(v, &at, x, x + step, 0), v->e, x + 2 * step);
            scatter(x + 2 * step, sum->c, tokens(sum, &at), at.count, out);
        }
    }
}

void translution_values_back(const Plan *p, const Side *v, const Side *sum, const float *alpha, float *d_alpha,
                             float *room)
{
#pragma omp parallel for num_threads(p->threads) schedule(static, 1)
    for (size t = 0; t < p->threads; t++) {
        const size step = rows_of(v, sum);
        float *x = room + t * translution_room(v, sum), *g = x + step, *y = g + step, *dy = y + step;
        for (Chunk at = {.thread = t, .turn = p->part[t]}; advance(p, &at);) {
            gather(v->x, v->c, tokens(v, &at), at.count, x);
            gather(sum->x, sum->c, tokens(sum, &at), at.count, g);
            dot(p, &at, g, project(v, &at, x, y, 1), v->e, d_alpha);
            per_head(p, &at, alpha, g, v->e, dy);
            back(p, v, &at, x, dy, dy + step, y);
        }
    }
}
