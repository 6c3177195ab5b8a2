/* onednn: products by oneDNN, 2.x or 3.x. bf16 products are primitives, compiled once for
 * each shape, and kept. With threads a primitive adds up in an order that depends on how
 * many there are; so a product is cut into strips of columns, the same ones whatever the
 * number of threads, and each strip is one thread's work. */
#include "base/mem.h"
#include "base/part.h"
#include "matlib.h"
#include "trainer/ops/ops.h"
#include "trainer/ops/simd.h"

#if DCP_HAS_ONEDNN

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <string.h>

#if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
#error "this file knows oneDNN 2 and 3; configure with -DDCP_WITH_ONEDNN=OFF"
#endif

#define ALIGN 64
#define MAX_PRODUCTS 256 /* the oldest goes when a new shape comes */

struct matlib {
    bool serial;
    bool bf16; /* the CPU multiplies bf16 itself */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct product *products;
    int n_products, next; /* next: the one to replace when all are taken */
    void **work;          /* of each thread: scratch of the primitive that runs */
    size_t *work_bytes;
    int n_threads; /* with scratch */
};

static int failed(dnnl_status_t status, const char *what, struct dcp_error *err)
{
    if (status == dnnl_out_of_memory)
        return dcp_error_memory(err, what);
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "oneDNN failed at %s: %s", what,
                         dnnl_status2str(status));
}

int matlib_sgemm(const struct matmul_shape *s, const float *a, const float *b, float *c,
                 struct dcp_error *err)
{
    dnnl_status_t status =
        dnnl_sgemm(s->trans_a ? 'T' : 'N', s->trans_b ? 'T' : 'N', s->m, s->n, s->k, 1, a,
                   s->lda, b, s->ldb, s->accumulate ? 1 : 0, c, s->ldc);
    return status == dnnl_success ? DCP_OK : failed(status, "a matrix product", err);
}

/* A primitive for one thread and one shape; NULL where oneDNN has none. */
struct product {
    struct matmul_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t md[4]; /* a, b, c, scratch */
    size_t work_bytes;
};

/* oneDNN 3 made descriptors opaque and joined two steps of 2.x into one. */
#if DNNL_VERSION_MAJOR >= 3
#define MD_REF(md) (md)
#define MD_CONST_REF const_dnnl_memory_desc_t

static dnnl_status_t describe(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static void undescribe(dnnl_memory_desc_t md)
{
    if (md)
        dnnl_memory_desc_destroy(md);
}

static dnnl_status_t choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                            const dnnl_memory_desc_t md[3],
                            const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, md[0], md[1], NULL, md[2],
                                             attr);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1, 0, dnnl_data_type_undef);
}

static dnnl_status_t keep(dnnl_memory_desc_t *out, const_dnnl_memory_desc_t md)
{
    return dnnl_memory_desc_clone(out, md);
}
#else
#define MD_REF(md) (&(md))
#define MD_CONST_REF const dnnl_memory_desc_t *

static dnnl_status_t describe(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static void undescribe(dnnl_memory_desc_t md)
{
    (void)md;
}

static dnnl_status_t choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                            const dnnl_memory_desc_t md[3],
                            const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1);
}

static dnnl_status_t keep(dnnl_memory_desc_t *out, const dnnl_memory_desc_t *md)
{
    *out = *md;
    return dnnl_success;
}
#endif

static void product_fini(struct product *p)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(p->md); i++)
        undescribe(p->md[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

/* Our scratch and, where asked for, sums onto what c holds. */
static dnnl_status_t make_attr(bool accumulate, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && accumulate) {
        status = dnnl_post_ops_create(&post_ops);
        if (status == dnnl_success)
            status = append_sum(post_ops);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(*out, post_ops);
    }
    if (post_ops)
        dnnl_post_ops_destroy(post_ops);
    return status;
}

static dnnl_status_t take_scratch(struct product *p, const_dnnl_primitive_desc_t pd)
{
    MD_CONST_REF work = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->work_bytes = work ? dnnl_memory_desc_get_size(work) : 0;
    return p->work_bytes ? keep(&p->md[3], work) : dnnl_success;
}

static int product_init(struct product *p, const struct matlib *lib,
                        const struct matmul_shape *s, struct dcp_error *err)
{
    memset(p, 0, sizeof *p);
    p->shape = *s;
    const dnnl_dims_t dims[] = { { s->m, s->k }, { s->k, s->n }, { s->m, s->n } };
    const dnnl_dims_t strides[] = {
        { s->trans_a ? 1 : s->lda, s->trans_a ? s->lda : 1 },
        { s->trans_b ? 1 : s->ldb, s->trans_b ? s->ldb : 1 },
        { s->ldc, 1 },
    };
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = describe(&p->md[i], dims[i], i < 2 ? dnnl_bf16 : dnnl_f32, strides[i]);
    if (status == dnnl_success)
        status = make_attr(s->accumulate, &attr);
    if (status == dnnl_success)
        status = choose(&pd, lib->engine, p->md, attr);
    if (status == dnnl_success)
        status = take_scratch(p, pd);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    if (status == dnnl_success || status == dnnl_unimplemented)
        return DCP_OK;
    product_fini(p);
    return failed(status, "preparing a bf16 matrix product", err);
}

static bool same(const struct matmul_shape *a, const struct matmul_shape *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda &&
           a->ldb == b->ldb && a->ldc == b->ldc && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->accumulate == b->accumulate;
}

static int find_product(struct matlib *lib, const struct matmul_shape *s,
                        struct product **out, struct dcp_error *err)
{
    for (int i = 0; i < lib->n_products; i++) {
        *out = &lib->products[i];
        if (same(&(*out)->shape, s))
            return DCP_OK;
    }
    if (lib->n_products < MAX_PRODUCTS) {
        *out = &lib->products[lib->n_products++];
    } else {
        *out = &lib->products[lib->next];
        lib->next = (lib->next + 1) % MAX_PRODUCTS;
        product_fini(*out);
    }
    /* A primitive plans for the threads that it finds when it is made. */
    int before = ops_threads();
    ops_set_threads(1);
    int rc = product_init(*out, lib, s, err);
    ops_set_threads(before);
    return rc;
}

static int reserve_work(struct matlib *lib, int threads, size_t size_bytes,
                        struct dcp_error *err)
{
    if (threads > lib->n_threads) {
        void **work = dcp_mem_calloc((size_t)threads, sizeof *work);
        size_t *bytes = dcp_mem_calloc((size_t)threads, sizeof *bytes);
        for (int t = 0; work && bytes && t < lib->n_threads; t++) {
            work[t] = lib->work[t];
            bytes[t] = lib->work_bytes[t];
        }
        if (!work || !bytes) {
            free(work);
            free(bytes);
            return dcp_error_memory(err, "scratch of a matrix product");
        }
        free(lib->work);
        free(lib->work_bytes);
        lib->work = work;
        lib->work_bytes = bytes;
        lib->n_threads = threads;
    }
    for (int t = 0; t < threads; t++) {
        if (size_bytes <= lib->work_bytes[t])
            continue;
        free(lib->work[t]);
        lib->work[t] = dcp_mem_aligned(ALIGN, size_bytes);
        lib->work_bytes[t] = lib->work[t] ? size_bytes : 0;
        if (!lib->work[t])
            return dcp_error_memory(err, "scratch of a matrix product");
    }
    return DCP_OK;
}

/* The API has no const; a source is only read. */
static void *as_handle(const void *data)
{
    union {
        const void *in;
        void *out;
    } handle = { data };
    return handle.out;
}

/* One strip, by this thread alone. */
static dnnl_status_t run_strip(const struct matlib *lib, const struct product *p,
                               const uint16_t *a, const uint16_t *b, float *c, void *work)
{
    static const int names[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                 DNNL_ARG_SCRATCHPAD };
    void *const data[] = { as_handle(a), as_handle(b), c, work };
    dnnl_exec_arg_t args[4];
    int n = p->work_bytes ? 4 : 3, made = 0;
    dnnl_status_t status = dnnl_success;
    for (; made < n && status == dnnl_success; made++) {
        args[made].arg = names[made];
        status = dnnl_memory_create(&args[made].memory, MD_REF(p->md[made]), lib->engine,
                                    data[made]);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, lib->stream, n, args);
    else
        made--;
    while (made-- > 0)
        dnnl_memory_destroy(args[made].memory);
    return status;
}

int matlib_bf16(struct matlib *lib, const struct matmul_shape *s, const uint16_t *a,
                const uint16_t *b, float *c, bool *out_done, struct dcp_error *err)
{
    *out_done = false;
    if (!lib->bf16)
        return DCP_OK;
    int64_t strip = matmul_strip(s->n), n_strips = dcp_part_ceil(s->n, strip);
    int threads = lib->serial || n_strips == 1 ? 1 : ops_threads(),
        before = ops_threads();
    struct matmul_shape of_strip = *s;
    struct product *all, *last;
    of_strip.n = s->n < strip ? s->n : strip;
    DCP_TRY(find_product(lib, &of_strip, &all, err));
    of_strip.n = s->n - (n_strips - 1) * strip;
    DCP_TRY(find_product(lib, &of_strip, &last, err));
    of_strip.n = s->n < strip ? s->n : strip; /* it may have had to make room */
    DCP_TRY(find_product(lib, &of_strip, &all, err));
    if (!all->primitive || !last->primitive)
        return DCP_OK;
    DCP_TRY(reserve_work(
        lib, threads,
        all->work_bytes > last->work_bytes ? all->work_bytes : last->work_bytes, err));
    *out_done = true;
    _Atomic dnnl_status_t status = dnnl_success;
    if (threads == 1)
        ops_set_threads(1); /* also for oneDNN, where it is not called from threads */
    OPS_PARALLEL_TASKS(threads)
    for (int64_t i = 0; i < n_strips; i++) {
        int64_t at = i * strip;
        int t = threads > 1 ? OPS_THREAD() : 0;
        dnnl_status_t now =
            run_strip(lib, i == n_strips - 1 ? last : all, a,
                      b + (s->trans_b ? at * s->ldb : at), c + at, lib->work[t]);
        if (now != dnnl_success)
            status = now;
    }
    if (threads == 1)
        ops_set_threads(before);
    return status == dnnl_success ? DCP_OK : failed(status, "a bf16 matrix product", err);
}

int matlib_new(bool serial, struct matlib **out, struct dcp_error *err)
{
    struct matlib *lib = dcp_mem_calloc(1, sizeof *lib);
    if (!lib)
        return dcp_error_memory(err, "matrix products");
    lib->serial = serial;
    lib->products = dcp_mem_calloc(MAX_PRODUCTS, sizeof *lib->products);
    if (!lib->products) {
        matlib_free(lib);
        return dcp_error_memory(err, "matrix products");
    }
    dnnl_status_t status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        matlib_free(lib);
        return failed(status, "its start", err);
    }
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    unsigned want =
        (unsigned)dnnl_cpu_isa_avx512_core_bf16; /* instruction sets are bits */
    lib->bf16 = (isa & want) == want;
    *out = lib;
    return DCP_OK;
}

void matlib_free(struct matlib *lib)
{
    if (!lib)
        return;
    for (int i = 0; i < lib->n_products; i++)
        product_fini(&lib->products[i]);
    for (int t = 0; t < lib->n_threads; t++)
        free(lib->work[t]);
    free(lib->work);
    free(lib->work_bytes);
    free(lib->products);
    if (lib->stream)
        dnnl_stream_destroy(lib->stream);
    if (lib->engine)
        dnnl_engine_destroy(lib->engine);
    free(lib);
}

/* Its threads are OpenMP's. */
void matlib_set_threads(int n)
{
    (void)n;
}

void matlib_region_begin(void)
{
}

void matlib_region_end(void)
{
}

#endif
