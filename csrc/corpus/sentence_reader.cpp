#include "corpus/sentence_reader.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/xxhash64.h"
#include "unicode/utf8.h"

namespace fastbert::corpus {
namespace {

std::size_t chars_of(std::string_view text) { return unicode::count_characters(text); }

}  // namespace

void SentenceReader::add(std::string_view lines) {
    if (!lines.empty() && std::memchr(lines.data(), '\r', lines.size()) != nullptr) {
        normalized_.clear();
        for (std::size_t i = 0; i < lines.size(); ++i) {
            if (lines[i] != '\r') {
                normalized_.push_back(lines[i]);
            } else if (i + 1 == lines.size() || lines[i + 1] != '\n') {
                normalized_.push_back('\n');
            }
        }
        lines = normalized_;
    }
    while (!lines.empty()) {
        const auto* const end = static_cast<const char*>(std::memchr(lines.data(), '\n', lines.size()));
        const std::size_t size = end == nullptr ? lines.size() : static_cast<std::size_t>(end - lines.data());
        add_line(rules_->stripped(lines.substr(0, size)));
        lines.remove_prefix(end == nullptr ? size : size + 1);
    }
}

void SentenceReader::add_line(std::string_view line) {
    if (line.empty()) {
        ++blank_lines_;
        if (layout_ == Layout::kProse) end_wrapped();
        if (!one_document_ && blank_lines_ == (layout_ == Layout::kProse ? 2u : 1u)) close_document();
        return;
    }
    blank_lines_ = 0;
    switch (layout_) {
        case Layout::kLines:
            add_sentence(line);
            break;
        case Layout::kParagraphs:
            add_paragraph(line);
            break;
        case Layout::kProse:
            if (!wrapped_.empty() && !rules_->joins_without_space(wrapped_, line)) wrapped_.push_back(' ');
            wrapped_.append(line);
            wrapped_chars_ += chars_of(line);
            if (wrapped_chars_ > limits_.paragraph_chars) end_wrapped();
    }
    if (document_chars_ > limits_.document_chars) {
        ++cut_documents_;
        close_document();
    }
}

void SentenceReader::add_sentence(std::string_view sentence) {
    if (repeats_) lines_.push_back({xxhash64(sentence.data(), sentence.size()), batch_.count()});
    append(sentence);
}

void SentenceReader::add_paragraph(std::string_view paragraph) {
    if (repeats_) lines_.push_back({xxhash64(paragraph.data(), paragraph.size()), batch_.count()});
    sentences_.clear();
    rules_->split(paragraph, sentences_);
    for (const std::string_view sentence : sentences_) append(sentence);
}

void SentenceReader::end_wrapped() {
    if (!wrapped_.empty()) add_paragraph(wrapped_);
    wrapped_.clear();
    wrapped_chars_ = 0;
}

void SentenceReader::append(std::string_view sentence) {
    batch_.text.append(std::span(sentence.data(), sentence.size()));
    batch_.offsets.push_back(static_cast<std::int64_t>(batch_.text.size()));
    document_chars_ += chars_of(sentence);
    document_is_open_ = true;
}

void SentenceReader::end_document() {
    end_wrapped();
    blank_lines_ = 0;
    close_document();
}

void SentenceReader::close_document() {
    if (repeats_ && document_is_open_) drop_repeats();
    if (document_is_open_) batch_.document_ends.push_back(static_cast<std::int64_t>(batch_.count()));
    document_begin_ = batch_.count();
    document_is_open_ = false;
    document_chars_ = 0;
    lines_.clear();
}

void SentenceReader::drop_repeats() {
    Repeats& repeats = *repeats_;
    ++repeats.documents;
    const auto remove_from = [&](std::size_t sentence) {
        batch_.text.resize(static_cast<std::size_t>(batch_.offsets[sentence]));
        batch_.offsets.resize(sentence + 1);
    };
    if (repeats.of_documents) {
        std::uint64_t hash = lines_.size();
        for (const Line& line : lines_) hash = xxhash64(&line.hash, sizeof(line.hash), hash);
        if (!repeats.seen_documents.insert(hash)) {
            ++repeats.dropped_documents;
            repeats.dropped_document_bytes += batch_.offsets.back() - batch_.offsets[document_begin_];
            remove_from(document_begin_);
            document_is_open_ = false;
            return;
        }
    }
    repeats.lines += static_cast<std::int64_t>(lines_.size());
    if (!repeats.of_lines) return;
    // Move what is new to the front.
    std::size_t kept = document_begin_;
    std::int64_t end = batch_.offsets[kept];
    for (std::size_t i = 0; i < lines_.size(); ++i) {
        const std::size_t first = lines_[i].first_sentence;
        const std::size_t last = i + 1 < lines_.size() ? lines_[i + 1].first_sentence : batch_.count();
        const std::int64_t from = batch_.offsets[first], to = batch_.offsets[last];
        if (!repeats.seen_lines.insert(lines_[i].hash)) {
            ++repeats.dropped_lines;
            repeats.dropped_line_bytes += to - from;
            continue;
        }
        if (first != kept) {
            std::memmove(batch_.text.data() + end, batch_.text.data() + from, static_cast<std::size_t>(to - from));
            for (std::size_t sentence = first; sentence < last; ++sentence) {
                batch_.offsets[kept + sentence - first + 1] = batch_.offsets[sentence + 1] - from + end;
            }
        }
        kept += last - first;
        end += to - from;
    }
    if (kept == batch_.count()) return;
    remove_from(kept);
    document_is_open_ = kept > document_begin_;
}

SentenceBatch SentenceReader::take() {
    const std::size_t complete = repeats_ ? document_begin_ : batch_.count();
    SentenceBatch rest;
    const std::int64_t base = batch_.offsets[complete];
    rest.text.append({batch_.text.data() + base, batch_.text.size() - static_cast<std::size_t>(base)});
    for (std::size_t i = complete; i < batch_.count(); ++i) rest.offsets.push_back(batch_.offsets[i + 1] - base);
    for (Line& line : lines_) line.first_sentence -= complete;
    rest.begins_document = repeats_ || !document_is_open_;
    batch_.text.resize(static_cast<std::size_t>(base));
    batch_.offsets.resize(complete + 1);
    document_begin_ = 0;
    return std::exchange(batch_, std::move(rest));
}

}  // namespace fastbert::corpus
