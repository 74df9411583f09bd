// Reads text as documents of sentences: lines in, sentences out, by one of the layouts of fastbert/data/layouts.py, which
// is the reference.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "corpus/repeats.h"
#include "corpus/sentence_rules.h"

namespace fastbert::corpus {

enum class Layout { kLines, kParagraphs, kProse };

// Sentences side by side: sentence i is text[offsets[i]] to text[offsets[i + 1]]. A document ends before each sentence of
// `document_ends`; what follows the last one belongs to a document that goes on in the next batch.
struct SentenceBatch {
    Buffer<char> text;
    Buffer<std::int64_t> offsets, document_ends;
    bool begins_document = true;  // false if the document of the first sentence began in an earlier batch

    SentenceBatch() { offsets.push_back(0); }
    std::size_t count() const { return offsets.size() - 1; }
    std::string_view sentence(std::size_t i) const {
        return {text.data() + offsets[i], static_cast<std::size_t>(offsets[i + 1] - offsets[i])};
    }
};

class SentenceReader {
public:
    struct Limits {
        std::size_t paragraph_chars, document_chars;  // longer ones are cut
    };

    // With `one_document`, blank lines separate paragraphs only. With `repeats`, which may be shared by readers that take
    // turns, repeated lines and documents are dropped.
    SentenceReader(std::shared_ptr<const SentenceRules> rules, Layout layout, bool one_document, Limits limits,
                   std::shared_ptr<Repeats> repeats)
        : rules_(std::move(rules)), layout_(layout), one_document_(one_document), limits_(limits),
          repeats_(std::move(repeats)) {}

    // Read lines of valid UTF-8, which end with LF, CRLF or CR, the last one also with the text.
    void add(std::string_view lines);
    // Read a sentence as it is: a line of its own.
    void add_sentence(std::string_view sentence);
    // End the document, and with it its last paragraph.
    void end_document();

    // Return the sentences that are complete: all, or with `repeats` those of complete documents.
    SentenceBatch take();

    // Bytes of the sentences that `take` would return.
    std::size_t complete_bytes() const {
        return static_cast<std::size_t>(batch_.offsets[repeats_ ? document_begin_ : batch_.count()]);
    }
    // Documents that were cut because they were too long.
    std::int64_t cut_documents() const { return cut_documents_; }

private:
    struct Line {  // a unit in which repeats are dropped: a line, in prose a paragraph
        std::uint64_t hash;
        std::size_t first_sentence;
    };

    void add_line(std::string_view line);
    void add_paragraph(std::string_view paragraph);
    void end_wrapped();
    void append(std::string_view sentence);
    void close_document();
    void drop_repeats();

    std::shared_ptr<const SentenceRules> rules_;
    Layout layout_;
    bool one_document_;
    Limits limits_;
    std::shared_ptr<Repeats> repeats_;

    SentenceBatch batch_;
    std::size_t document_begin_ = 0;  // its first sentence in the batch; 0 for one that began in an earlier batch
    bool document_is_open_ = false;
    std::size_t document_chars_ = 0;
    std::vector<Line> lines_;  // of the document
    std::string wrapped_;      // the lines of the paragraph being read, joined
    std::size_t wrapped_chars_ = 0, blank_lines_ = 0;
    std::int64_t cut_documents_ = 0;
    std::string normalized_;
    std::vector<std::string_view> sentences_;
};

}  // namespace fastbert::corpus
