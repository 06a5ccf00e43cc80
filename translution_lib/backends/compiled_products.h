/* Products of small matrices, dense and float32: what compiled.c needs of them.

   gcc and clang turn the vectors of eight into what the machine has. The sizes are those of AVX2's registers. */

#include <stddef.h>

#define TALL 4          /* a tile of 4 rows by 3 vectors of 8: 12 sums, 3 factors and 1 number, 16 registers */
#define WIDE 3
_Static_assert(WIDE == 3, "panel() and product() cut columns by 24, 16 and 8");

typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
typedef ptrdiff_t size;

#if defined(__AVX__)
#define IN_REGISTER(v) __asm__("" : "+x"(v))    /* else gcc reads it from memory once for each row of the tile */
#else
#define IN_REGISTER(v)
#endif
#define TILE_LOOP _Pragma("GCC unroll 8")

/* C = A B or C += A B for one tile; A is read with strides (ar, ac), B and C have dense rows. */
static inline __attribute__((always_inline)) void
tile(const int tall, const int wide, size k, const float *a, size ar, size ac, const float *b, size ldb, float *c,
     size ldc, int add)
{
    vec sum[TALL][WIDE];
    TILE_LOOP for (int i = 0; i < tall; i++)
        TILE_LOOP for (int j = 0; j < wide; j++)
            sum[i][j] = add ? *(const vec *)(c + i * ldc + 8 * j) : (vec){0};
    for (size l = 0; l < k; l++, a += ac, b += ldb) {
        vec row[WIDE];
        TILE_LOOP for (int j = 0; j < wide; j++) {
            row[j] = *(const vec *)(b + 8 * j);
            IN_REGISTER(row[j]);
        }
        TILE_LOOP for (int i = 0; i < tall; i++) {
            const vec number = a[i * ar] - (vec){0};
            TILE_LOOP for (int j = 0; j < wide; j++)
                sum[i][j] += number * row[j];
        }
    }
    TILE_LOOP for (int i = 0; i < tall; i++)
        TILE_LOOP for (int j = 0; j < wide; j++)
            *(vec *)(c + i * ldc + 8 * j) = sum[i][j];
}

static inline __attribute__((always_inline)) void
columns(const int wide, size m, size k, const float *a, size ar, size ac, const float *b, size ldb, float *c, size ldc,
        int add)
{
    size i = 0;
    for (; i + TALL <= m; i += TALL)
        tile(TALL, wide, k, a + i * ar, ar, ac, b, ldb, c + i * ldc, ldc, add);
    for (; i < m; i++)
        tile(1, wide, k, a + i * ar, ar, ac, b, ldb, c + i * ldc, ldc, add);
}

/* As `columns`, for fewer than a vector has. */
static void narrow(size m, size w, size k, const float *a, size ar, size ac, const float *b, size ldb, float *c,
                   size ldc, int add)
{
    for (size i = 0; i < m; i++)
        for (size j = 0; j < w; j++) {
            float sum = add ? c[i * ldc + j] : 0;
            for (size l = 0; l < k; l++)
                sum += a[i * ar + l * ac] * b[l * ldb + j];
            c[i * ldc + j] = sum;
        }
}

/* The width of the panel of columns that begins at j of n: the widest that is left. */
static size panel(size n, size j) { return n - j >= 24 ? 24 : n - j >= 16 ? 16 : n - j >= 8 ? 8 : n - j; }

/* C (m n) = A (m k) B (k n), or += with add; B row by row, or panel by panel if it comes from `pack`. */
static void product(size m, size n, size k, const float *a, size ar, size ac, const float *b, int packed, float *c,
                    int add)
{
    for (size j = 0, w; j < n; j += w) {
        w = panel(n, j);
        const float *from = packed ? b + j * k : b + j;
        const size ldb = packed ? w : n;
        if (w == 24)
            columns(3, m, k, a, ar, ac, from, ldb, c + j, n, add);
        else if (w == 16)
            columns(2, m, k, a, ar, ac, from, ldb, c + j, n, add);
        else if (w == 8)
            columns(1, m, k, a, ar, ac, from, ldb, c + j, n, add);
        else
            narrow(m, w, k, a, ar, ac, from, ldb, c + j, n, add);
    }
}

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector) && !defined(WITHOUT_SHUFFLES)
#define SHUFFLES        /* gcc has them from 12 on */
#endif
#endif

/* Transpose eight rows of eight numbers: rows of b lie n apart, those of out m. */
static void exchange(const float *b, size n, float *out, size m)
{
#ifdef SHUFFLES
    vec x[8], y[8];
    TILE_LOOP for (int i = 0; i < 8; i++)
        x[i] = *(const vec *)(b + i * n);
    TILE_LOOP for (int i = 0; i < 8; i += 2) {
        y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    TILE_LOOP for (int i = 0; i < 8; i += i % 2 ? 3 : 1) {
        x[i] = __builtin_shufflevector(y[i], y[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        x[i + 2] = __builtin_shufflevector(y[i], y[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    TILE_LOOP for (int i = 0; i < 4; i++) {
        *(vec *)(out + i * m) = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(vec *)(out + (i + 4) * m) = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            out[j * m + i] = b[i * n + j];
#endif
}

/* Bᵀ (k n) of B (n k), panel by panel: the columns of a panel lie side by side. */
static void pack(size n, size k, const float *b, float *out)
{
    for (size j = 0, w; j < n; j += w) {
        w = panel(n, j);
        for (size l = 0; l < k; l += 8)
            for (size i = j; i < j + w; i += 8) {
                float *to = out + j * k + l * w + i - j;
                if (w >= 8 && l + 8 <= k)
                    exchange(b + i * k + l, k, to, w);
                else
                    for (size u = 0; u < 8 && l + u < k; u++)
                        for (size v = 0; v < 8 && i + v < j + w; v++)
                            to[u * w + v] = b[(i + v) * k + l + u];
            }
    }
}
